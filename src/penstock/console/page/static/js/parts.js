// The parts of a query as tables: sources, sinks, states, lookups; and its errors, whole and copyable.
import { html } from "./html.js";
import { bytes, count, duration, time } from "./format.js";
import { isTopic, topicPage } from "./kafka.js";
import { breakable } from "./marks.js";
import { Whole } from "./notices.js";
import { Table } from "./table.js";

const sum = (counts) => Object.values(counts ?? {}).reduce((all, value) => all + value, 0);
const reasons = (counts) =>
  Object.entries(counts ?? {})
    .map(([reason, number]) => `${reason}: ${count(number)}`)
    .join(", ");
const number = (title, name, format = count) => ({
  title,
  number: true,
  value: (row) => row[name] ?? null,
  cell: (row) => format(row[name]),
});
const byReason = (title, name) => ({
  title,
  number: true,
  value: (row) => sum(row[name]),
  cell: (row) =>
    html`${count(sum(row[name]))}${sum(row[name]) > 0 && html`<div class="quiet reasons">${reasons(row[name])}</div>`}`,
});

const name = (title, of = "name") => ({
  title,
  head: true,
  value: (row) => row[of],
  cell: (row) => (row.page ? html`<a href=${row.page}>${breakable(row[of])}</a>` : breakable(row[of])),
});

const SOURCES = [
  name("Source"),
  number("Lag", "lag_seconds", duration),
  number("Lag in records", "lag_records"),
  number("Deleted in", "retention_left_seconds", duration),
  number("Rows", "rows_total"),
  byReason("Bad records", "bad_records"),
];
const SINKS = [
  name("Sink"),
  number("Rows", "rows_total"),
  number("Bytes", "bytes_total", bytes),
  ...["p50", "p95", "p99"].map((which) => ({
    title: `Delay ${which.toUpperCase()}`,
    number: true,
    value: (row) => row.delay?.[which],
    cell: (row) =>
      html`${duration(row.delay?.[which])}${which === "p99" && row.delay?.unknown && html`<div class="quiet reasons">${row.delay.unknown}</div>`}`,
  })),
  number("Retries", "retries_total"),
  byReason("Failures", "failures"),
  byReason("Dead letters", "dead_letters"),
];
const STATES = [
  name("State", "operator"),
  number("Rows", "rows"),
  number("Memory", "memory_bytes", bytes),
  number("Disk", "disk_bytes", bytes),
  number("Late rows", "late_rows_total"),
];
const share = (row) => (row.rows_total ? row.hits_total / row.rows_total : null);
const LOOKUPS = [
  name("Lookup"),
  number("Rows", "rows_total"),
  number("Found", "hits_total"),
  {
    title: "Found of all",
    number: true,
    value: share,
    cell: (row) => (share(row) === null ? "–" : `${Math.round(share(row) * 100)} %`),
  },
  number("Waited", "wait_seconds_total", duration),
];

function Part({ id, title, columns, rows, note }) {
  if (!rows?.length) return null;
  return html`<section class="card" aria-labelledby=${id}>
    <div class="heading"><h2 id=${id}>${title}</h2>${note && html`<span class="quiet">${note}</span>`}</div>
    <${Table} caption=${title} columns=${columns} rows=${rows} keyOf=${(row) => row.name ?? row.operator} />
  </section>`;
}

/** The sources or sinks of a query, with the pages of their topics. */
function withPages(rows, nodes) {
  const topics = new Map(nodes.filter(isTopic).map((node) => [node.id, topicPage(node)]));
  return rows?.map((row) => ({ ...row, page: topics.get(row.node) }));
}

export const Parts = ({ query, nodes }) => html`
  <${Part} id="sources" title="Sources" columns=${SOURCES} rows=${withPages(query.sources, nodes)} note="deleted in: until Kafka deletes the oldest record that is not read yet" />
  <${Part} id="sinks" title="Sinks" columns=${SINKS} rows=${withPages(query.sinks, nodes)} note="delay: from the event to the acknowledgement" />
  <${Part} id="states" title="State" columns=${STATES} rows=${query.states} />
  <${Part} id="lookups" title="Lookups" columns=${LOOKUPS} rows=${query.lookups} />
`;

/** The newest error first. */
export function Errors({ errors }) {
  if (!errors.length) return null;
  return html`<section class="card" aria-labelledby="errors">
    <h2 id="errors">${errors.length > 1 ? `The last ${count(errors.length)} errors` : "The last error"}</h2>
    <ol class="errors">${[...errors].reverse().map(
      (error, at) => html`<li key=${`${error.at} ${error.query} ${error.what}`}>
      <p><strong class="break">${error.what}</strong></p>
      <p class="quiet">${[time(error.at), error.query, error.where].filter(Boolean).join(" · ")}</p>
      ${error.next && html`<p>Next: ${error.next}</p>`}
      ${error.trace && html`<details open=${at === 0}><summary>The whole text</summary><${Whole} text=${error.trace} what="the error's text" /></details>`}
    </li>`,
    )}</ol>
  </section>`;
}
