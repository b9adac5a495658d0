// The overview as the server sends it: one stream of server-sent events for the whole page, closed while the page is
// hidden (a browser has only six connections to a server), opened again after the server was restarted.
import { store, useStore } from "./store.js";
import { get } from "./api.js";
import { add } from "./series.js";

const LONGEST_WAIT = 5_000; // milliseconds between two attempts to connect
const SILENCE = 15_000; // milliseconds without an event after which the server is asked whether it is there

const overview = store(null);
/** {state: "connecting" | "live" | "lost", since: milliseconds} */
const connection = store({ state: "connecting", since: Date.now() });
export const useOverview = () => useStore(overview);
export const useConnection = () => useStore(connection);

let source = null;
let wait = 500;
let retry = 0;
let heard = 0;

function become(state) {
  if (connection.get().state !== state) connection.set({ state, since: Date.now() });
}

function take(data) {
  overview.set(data);
  add(data);
}

function close() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

function reconnect() {
  close();
  become("lost");
  retry = setTimeout(open, wait);
  wait = Math.min(wait * 2, LONGEST_WAIT);
}

function open() {
  close();
  if (document.hidden) return;
  heard = Date.now();
  source = new EventSource("api/events");
  source.addEventListener("overview", (event) => {
    [wait, heard] = [500, Date.now()];
    become("live");
    take(JSON.parse(event.data));
  });
  source.addEventListener("error", reconnect);
}

async function look() {
  if (!source || document.hidden || Date.now() - heard < SILENCE) return;
  try {
    take(await get(["overview"]));
    heard = Date.now();
    become("live");
  } catch {
    reconnect();
  }
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  setInterval(look, 5_000);
  open();
}
