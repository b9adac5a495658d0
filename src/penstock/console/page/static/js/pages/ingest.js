// Servers that take events over HTTP: requests, events, and what was refused.
// @ts-check
/** @import { Column, IngestServer } from "../../../types" */
import { useEffect, useRef } from "preact/hooks";
import { html } from "../html.js";
import { useGet } from "../api.js";
import { bytes, count, rate } from "../format.js";
import { Failure, Loading } from "../notices.js";
import { State } from "../marks.js";
import { Table } from "../table.js";

const FIRST = ["requests_total", "events_total", "bad_events_total"];
/** @type {Record<string, string>} */
const WORDS = {
  kafka: "Kafka",
  in_flight: "Requests in flight",
  bytes_total: "Bytes taken",
  bad_events_total: "Refused events",
  statuses: "Requests by HTTP status",
};

/** @param {string} name */
function named(name) {
  const words = name.replace(/_total$/, "").replaceAll("_", " ");
  return WORDS[name] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

/** @type {(name: string, value: unknown) => string} */
function shown(name, value) {
  if (typeof value === "number") return name.startsWith("bytes") ? bytes(value) : count(value);
  if (value === null || typeof value !== "object") return String(value);
  return Object.entries(value)
    .map(([of, number]) => `${of}: ${count(number)}`)
    .join(", ");
}

/** @typedef {[name: string, value: unknown]} Row */
/** @type {Column<Row>[]} */
const COLUMNS = [
  { title: "What", head: true, value: ([name]) => named(name), cell: ([name]) => named(name) },
  { title: "Value", cell: ([name, value]) => shown(name, value) },
];

/** @typedef {Record<string, unknown>} Numbers */

/**
 * How fast each counter of a server grows a second, from one answer to the next.
 * @param {Numbers} numbers
 */
function useRates(numbers) {
  /** @type {Record<string, number>} */
  const none = {};
  const last = useRef({ at: 0, numbers, rates: none });
  const at = Date.now();
  const before = last.current;
  if (FIRST.some((name) => numbers[name] !== before.numbers[name]) || at - before.at > 5_000) {
    const growth = (/** @type {string} */ name) =>
      (1000 * (Number(numbers[name]) - Number(before.numbers[name]))) / (at - before.at);
    const rates = before.at ? Object.fromEntries(FIRST.map((name) => [name, Math.max(0, growth(name))])) : none;
    last.current = { at, numbers, rates };
  }
  return last.current.rates;
}

/** @param {{ server: IngestServer }} props */
function Server({ server }) {
  const { run, url, state, reachable, problem, ...numbers } = server;
  const rates = useRates(numbers);
  const rest = Object.entries(numbers).filter(([name]) => !FIRST.includes(name));
  return html`<section class="card" aria-label=${run}>
    <div class="heading"><h2>${run}</h2><${State} state=${reachable ? state : "failed"} /><span class="quiet">${url}</span></div>
    ${problem && html`<p class="failure">${problem}</p>`}
    <dl class="tiles">${FIRST.filter((name) => name in numbers).map((name) => html`<div key=${name} class="tile"><dt>${named(name)}</dt><dd>${shown(name, numbers[name])}<small> since its start${name in rates && ` · ${rate(rates[name])}/s`}</small></dd></div>`)}</dl>
    ${rest.length > 0 && html`<${Table} caption=${`Numbers of ${run}`} columns=${COLUMNS} rows=${rest} keyOf=${(/** @type {Row} */ [name]) => name} />`}
  </section>`;
}

export function Ingest() {
  const { data, error, loading, reload } = useGet(["ingest"], {}, { every: 2_000 });
  useEffect(() => {
    document.title = "Ingest · Penstock";
  }, []);
  return html`
    <div class="page-head"><h1>Ingest</h1></div>
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="servers" />`}
    ${data?.map((server) => html`<${Server} key=${server.run} server=${server} />`)}
    ${data && !data.length && html`<section class="card"><p class="empty">No server takes events: <code>penstock ingest</code> of this user is found by itself, another one with <code>--target URL</code>.</p></section>`}
  `;
}
