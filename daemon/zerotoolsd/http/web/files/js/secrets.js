// The secrets of this tab's session: `{id, key, secret}`. Other ports of this address never see them,
// as they do see cookies.
//
// A tab that is opened from another has none, and asks the others. They answer after the daemon has
// proved to them that it is the one that listens here.

const NAME = "zerotools-session";
const CHANNEL = "zerotools-secrets";
const WAIT_MS = 1500;

/** What this tab keeps over a reload; null: nothing. */
export function kept() {
  try {
    return checked(JSON.parse(sessionStorage.getItem(NAME)));
  } catch {
    // Storage is switched off, or somebody wrote into it.
    return null;
  }
}

export function keep(secrets) {
  try {
    sessionStorage.setItem(NAME, JSON.stringify(secrets));
  } catch {
    // Storage is switched off: the page that follows says that it has no session.
  }
}

export function forget() {
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // There is nothing to forget.
  }
}

const isHex = (text) => typeof text === "string" && /^[0-9a-f]{16,128}$/.test(text);
const checked = (found) => (isHex(found?.id) && isHex(found.key) && isHex(found.secret) ? found : null);

/** What another tab of this page has; null: there is none. */
export function fromAnotherTab() {
  return new Promise((done) => {
    const channel = new BroadcastChannel(CHANNEL);
    const end = (found) => {
      clearTimeout(timer);
      channel.close();
      done(found);
    };
    const timer = setTimeout(() => end(null), WAIT_MS);
    channel.onmessage = ({ data }) => {
      const found = checked(data?.secrets);
      if (found) end(found);
    };
    channel.postMessage({ wanted: true });
  });
}

/** Answer tabs that ask, with what `prove()` gives: the secrets, or null. */
export function answerTabs(prove) {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = async ({ data }) => {
    if (data?.wanted !== true) return;
    const secrets = await prove().catch(() => null);
    if (secrets) channel.postMessage({ secrets });
  };
}
