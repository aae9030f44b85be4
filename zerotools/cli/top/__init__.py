"""The full screen of `zerotools top`: what is read, the rows it becomes, and the screen itself,
which alone imports textual (the extra `top`)."""
