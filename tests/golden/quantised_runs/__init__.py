"""Libraries of quantised weights, which make golden cases and judge what zerotools makes."""
