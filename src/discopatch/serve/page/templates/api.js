// Requests to the server: tokens, problems as sentences, and events with reconnection.

const TOKEN_KEY = "discopatch-token";
const SILENCE = 45_000; // milliseconds; the server sends something every 15 s
const LONGEST_WAIT = 30_000;
const TRIES = 6; // attempts while the server is busy

const element = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

class Problem extends Error {
  constructor(status, message, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function problemOf(response) {
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  let said = `The server answered with status ${response.status}.`;
  try {
    const { title, detail } = await response.json();
    said = detail || title || said;
  } catch {
    // not JSON, such as the page of a proxy in between
  }
  return new Problem(response.status, said, retryAfter);
}

let tokenAsked = null; // the open dialog, which all requests share

function askForToken() {
  tokenAsked ??= new Promise((resolve) => {
    const dialog = element("token-dialog");
    const refused = sessionStorage.getItem(TOKEN_KEY) !== null;
    element("token-note").textContent = refused ? "The token was refused. Is it the one of this service?" : "It is kept until this tab is closed.";
    element("token").value = "";
    const keep = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN_KEY, element("token").value.trim());
      dialog.close("given");
    };
    element("token-form").addEventListener("submit", keep);
    element("token-cancel").onclick = () => dialog.close("");
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      element("token-form").removeEventListener("submit", keep);
      tokenAsked = null;
      resolve(dialog.returnValue === "given");
    }, { once: true });
    dialog.showModal();
  });
  return tokenAsked;
}

// The response, or a Problem; the token dialog opens as often as a token is refused. Paths are relative to the page,
// which may lie below a prefix of a proxy.
async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN_KEY);
    const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
    const response = await fetch(path.replace(/^\//, ""), { cache: "no-store", ...options, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw await problemOf(response);
    const another = sessionStorage.getItem(TOKEN_KEY) !== token; // after the 401 of another request
    if (!another && !(await askForToken())) throw new Problem(401, "This service needs a token.");
  }
}

const ROLES = ["read", "score", "admin"];

// Why the token may not do what needs this role, or "".
function refusal(needed) {
  if (ROLES.indexOf(page.role) >= ROLES.indexOf(needed)) return "";
  return `Not allowed: the token has the role ${page.role}, and this needs ${needed}. Open the page in a new tab to give another token.`;
}

async function getJson(path) {
  return (await request(path)).json();
}

// Sends one file, again while the server is busy.
async function postFile(path, file) {
  for (let tries = 1; ; tries++) {
    const body = new FormData();
    body.append("files", file, file.name || "pasted image");
    try {
      return await (await request(path, { method: "POST", headers: { Accept: "application/json" }, body })).json();
    } catch (problem) {
      if (![429, 503].includes(problem.status) || tries === TRIES) throw problem;
      await pause(1000 * Math.max(problem.retryAfter, 0.5 * tries));
    }
  }
}

// The text of an error.
function sentence(error) {
  if (error instanceof Problem) return error.message;
  return "The server did not answer, or the file could not be read.";
}

// The events in a response, as { id, type, data }, until it ends.
async function* serverEvents(response, onSound) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  let event = { type: "message", data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      onSound();
      const lines = (unread + value).split(/\r\n|\n|\r(?!$)/);
      unread = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data.length) yield { ...event, data: JSON.parse(event.data.join("\n")) };
          event = { type: "message", data: [] };
        } else {
          addField(event, line);
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function addField(event, line) {
  const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line) ?? [];
  if (field === "data") event.data.push(value);
  if (field === "event") event.type = value;
  if (field === "id") event.id = value;
}

// Events of one address. A connection that breaks or is silent is opened again.
class Subscription {
  constructor(path, { lastId, onEvent, onState }) {
    Object.assign(this, { path, lastId, onEvent, onState, failures: 0, ended: false });
    this.retry = () => this.wake?.();
    addEventListener("online", this.retry);
    this.run();
  }

  end() {
    this.ended = true;
    removeEventListener("online", this.retry);
    this.connection?.abort();
    this.wake?.();
  }

  async run() {
    while (!this.ended) {
      const problem = await this.listen().catch((error) => error);
      if (this.ended) return;
      this.failures += 1;
      const wait = Math.min(LONGEST_WAIT, 500 * 2 ** this.failures) * (0.75 + Math.random() / 2);
      this.onState("lost", { wait, problem: problem instanceof Problem ? problem.message : "" });
      await Promise.race([pause(wait), new Promise((resolve) => (this.wake = resolve))]);
      if (!this.ended) this.onState("connecting", {});
    }
  }

  async listen() {
    this.connection = new AbortController();
    const { signal } = this.connection;
    const headers = { Accept: "text/event-stream", ...(this.lastId && { "Last-Event-ID": String(this.lastId) }) };
    let watch = 0;
    const restartWatch = () => {
      clearTimeout(watch);
      watch = setTimeout(() => this.connection.abort(), SILENCE);
    };
    try {
      const response = await request(this.path, { headers, signal });
      this.failures = 0;
      this.onState("live", {});
      restartWatch();
      for await (const event of serverEvents(response, restartWatch)) {
        if (event.id) this.lastId = event.id;
        this.onEvent(event);
      }
    } finally {
      clearTimeout(watch);
    }
  }
}
