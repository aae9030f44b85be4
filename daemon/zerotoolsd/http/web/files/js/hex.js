// Bytes as hexadecimal text.

export const hexOfBytes = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Text that is none gives no bytes. */
export function bytesOfHex(text) {
  const pairs = /^(?:[0-9a-f]{2})*$/.test(text) ? (text.match(/../g) ?? []) : [];
  return new Uint8Array(pairs.map((pair) => parseInt(pair, 16)));
}
