// State of pipelines: what there is, and the rows of a key.
// @ts-check
/** @import { Column, KeptState, Query } from "../../../types" */
import { useEffect, useState } from "preact/hooks";
import { html, withValue } from "../html.js";
import { useGet } from "../api.js";
import { duration, many, time } from "../format.js";
import { href, setQuery, useRoute } from "../route.js";
import { Failure, Loading, Whole } from "../notices.js";
import { breakable } from "../marks.js";
import { Table } from "../table.js";

/** @param {unknown} value */
const text = (value) =>
  value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);

/**
 * What a pipeline calls the stage of an operator of Spark.
 * @type {Record<string, string>}
 */
const STAGES = {
  transformWithStateInPySparkExec: "stage with state",
  transformWithStateExec: "stage with state",
  stateStoreSave: "groupBy",
  symmetricHashJoin: "join",
  dedupe: "dropDuplicates",
  dedupeWithinWatermark: "dropDuplicatesWithinWatermark",
  applyInPandasWithState: "applyInPandasWithState",
};
/** @param {string | undefined} operator */
const made = (operator) => STAGES[operator ?? ""] ?? text(operator);

/** @type {Column<KeptState>[]} */
const STATES = [
  {
    title: "State",
    head: true,
    value: (row) => row.name,
    cell: (row) => html`<a href=${href("state", [row.name])}>${breakable(row.name)}</a>`,
  },
  { title: "Pipeline or server", value: (row) => row.run, cell: (row) => breakable(row.run) },
  { title: "Made by", value: (row) => made(row.operator), cell: (row) => made(row.operator) },
  { title: "Batch", number: true, value: (row) => row.batch, cell: (row) => text(row.batch) },
  { title: "Committed", value: (row) => row.committed, cell: (row) => time(row.committed) },
  { title: "Committed ago", number: true, value: (row) => row.age_seconds, cell: (row) => duration(row.age_seconds) },
];

/** @typedef {Record<string, unknown>} Row */

/**
 * A row whose fields are those of its key and of its value.
 * @param {Row} row
 */
function flat(row) {
  /** @type {Row} */
  const fields = {};
  for (const [name, value] of Object.entries(row)) {
    const inner = value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [];
    for (const [own, part] of inner) fields[own in fields ? `${name}.${own}` : own] = part;
    if (!inner.length) fields[name] = value;
  }
  return fields;
}

/**
 * Columns for rows whose names are not known beforehand: those of all rows, at most 30.
 * @param {Row[]} rows
 * @returns {Column<Row>[]}
 */
function columnsOf(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].slice(0, 30);
  return names.map((name, at) => ({
    title: name,
    head: at === 0,
    number: rows.every((row) => row[name] === undefined || row[name] === null || typeof row[name] === "number"),
    value: (row) => (typeof row[name] === "number" ? row[name] : (row[name] ?? null) === null ? null : text(row[name])),
    cell: (row) => html`<span class="break">${text(row[name])}</span>`,
  }));
}

/** @param {{ name: string, query: Query }} props */
function Rows({ name, query }) {
  const [key, setKey] = useState(query.key ?? "");
  const { data, error, loading, reload } = useGet(["state", name], { key: query.key });
  const rows = Array.isArray(data?.rows) ? data.rows.map(flat) : null;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    setQuery({ key });
  };
  return html`
    <form class="card search-form" onSubmit=${submit}>
      <label class="field">Key<input name="key" value=${key} class="long" placeholder="a key; none shows the first rows" onInput=${withValue(setKey)} /></label>
      <button type="submit" class="main">Look up</button>
      <p class="quiet">A key of several columns is a JSON object: <code>{"city": "Oslo", "day": 4}</code></p>
    </form>
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="rows" />`}
    ${data && rows && html`<section class="card" aria-labelledby="rows"><div class="heading"><h2 id="rows">${many(rows.length, "row")}</h2><span class="quiet">${[data.more && "there are more: look up a key", data.committed && `of batch ${data.batch}, committed at ${time(data.committed)}`].filter(Boolean).join(" · ")}</span></div><${Table} caption="Rows" columns=${columnsOf(rows)} rows=${rows} keyOf=${(/** @type {Row} */ row) => JSON.stringify(row)} empty=${query.key ? "The state has no row of this key." : "The state is empty."} /></section>`}
    ${data && html`<details class="same"><summary>The answer as JSON</summary><${Whole} text=${JSON.stringify(data, null, 2)} what="the answer" /></details>`}
  `;
}

const EMPTY = html`No state is known: no pipeline that was seen keeps one. Start the console with <code>--checkpoints DIR</code>, or
  with <code>--state URL</code> of a <code>penstock state serve</code>.`;

function All() {
  const { data, error, loading, reload } = useGet(["state"]);
  return html`
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="states" />`}
    ${data && html`<section class="card"><${Table} caption="States" columns=${STATES} rows=${data} keyOf=${(/** @type {KeptState} */ row) => `${row.run} ${row.folder} ${row.name}`} empty=${EMPTY} /></section>`}
  `;
}

/** @param {{ args: string[] }} props */
export function State({ args: [name = ""] }) {
  const { query } = useRoute();
  const shown = name || query.name || "";
  useEffect(() => {
    document.title = `${shown || "State"} · Penstock`;
  }, [shown]);
  return html`
    <div class="page-head"><h1>${shown || "State"}</h1>${shown && html`<a class="quiet" href=${href("state")}>All states</a>`}</div>
    ${shown ? html`<${Rows} key=${shown} name=${shown} query=${query} />` : html`<${All} />`}
  `;
}
