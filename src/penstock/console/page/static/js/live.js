// The overview as the server sends it: one stream of server-sent events for the whole page, closed while the page is
// hidden (a browser has only six connections to a server), opened again after the server was restarted.
// @ts-check
/** @import { Overview, Store } from "../../types" */
import { store, useStore } from "./store.js";
import { get } from "./api.js";
import { add } from "./series.js";

const LONGEST_WAIT = 5_000; // milliseconds between two attempts to connect
const SILENCE = 15_000; // milliseconds without an event after which the server is asked whether it is there

/** @type {Store<Overview | null>} */
const overview = store(/** @type {Overview | null} */ (null));
/** @typedef {"connecting" | "live" | "lost"} ConnectionState */
/** Since when, in milliseconds. */
const connection = store({ state: /** @type {ConnectionState} */ ("connecting"), since: Date.now() });
export const useOverviewOrNull = () => useStore(overview);

/** The overview for what is on a page, which is shown once there is one. */
export function useOverview() {
  const known = useStore(overview);
  if (!known) throw new Error("a page is shown before the first overview");
  return known;
}
export const useConnection = () => useStore(connection);

/** @type {EventSource | null} */
let source = null;
let wait = 500;
let retry = 0;
let heard = 0;

/** @param {ConnectionState} state */
function become(state) {
  if (connection.get().state !== state) connection.set({ state, since: Date.now() });
}

/** @param {Overview} data */
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
