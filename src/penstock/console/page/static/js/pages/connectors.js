// Connectors of all Kafka Connect clusters: tasks with their traces, offsets, configuration, and actions.
// @ts-check
/** @import { Column, ConnectTask, Connector as Known } from "../../../types" */
import { useEffect } from "preact/hooks";
import { html } from "../html.js";
import { ApiError, post, useGet } from "../api.js";
import { confirmed } from "../confirm.js";
import { cause, count, many } from "../format.js";
import { href } from "../route.js";
import { useOverview } from "../live.js";
import { ConnectState, State, breakable } from "../marks.js";
import { Failure, Loading, Whole } from "../notices.js";
import { Table } from "../table.js";

/** @typedef {Pick<Known, "state" | "tasks">} WithTasks */
/** @param {WithTasks} connector */
const failedTasks = (connector) => (connector.tasks ?? []).filter((task) => task.state === "FAILED").length;
/** @param {WithTasks} connector */
const mostlyBad = (connector) => (connector.tasks ?? []).some((task) => task.mostly_bad);
/** @param {WithTasks} connector */
const isBad = (connector) => connector.state === "FAILED" || failedTasks(connector) > 0 || mostlyBad(connector);

/**
 * A number of all tasks; null if no task tells it.
 * @param {WithTasks} connector
 * @param {"records_total" | "dead_letters_total"} name
 */
function sum(connector, name) {
  const known = (connector.tasks ?? []).map((task) => task[name]).filter((value) => typeof value === "number");
  return known.length ? known.reduce((all, value) => all + value, 0) : null;
}

/** @type {Column<Known>[]} */
const COLUMNS = [
  {
    title: "Connector",
    head: true,
    value: (one) => one.name,
    cell: (one) =>
      html`<a href=${href("connectors", [one.cluster, one.name])}>${breakable(one.name)}</a>${one.problem && html`<div class="quiet">${one.problem}</div>`}`,
  },
  {
    title: "State",
    value: (one) => (isBad(one) ? "0" : one.state),
    cell: (one) =>
      failedTasks(one)
        ? html`<${State} state="failed" word="task failed" />`
        : mostlyBad(one)
          ? html`<${State} state="failed" word="most records left out" />`
          : html`<${ConnectState} state=${one.state} />`,
  },
  {
    title: "Tasks",
    value: (one) => -failedTasks(one),
    cell: (one) =>
      html`${many(one.tasks?.length ?? 0, "task")}${failedTasks(one) > 0 && html`, <strong class="bad">${failedTasks(one)} failed</strong>`}`,
  },
  {
    title: "Records",
    number: true,
    value: (one) => sum(one, "records_total"),
    cell: (one) => count(sum(one, "records_total")),
  },
  {
    title: "Left out",
    number: true,
    value: (one) => sum(one, "dead_letters_total"),
    cell: (one) => count(sum(one, "dead_letters_total")),
  },
  { title: "Kind", value: (one) => one.type, cell: (one) => one.type ?? "–" },
  { title: "Worker", value: (one) => one.worker, cell: (one) => one.worker || "–" },
  {
    title: "Dead letters",
    value: (one) => one.letters,
    cell: (one) =>
      one.letters ? html`<a href=${href("dead-letters", [one.letters], { kafka: one.kafka })}>${one.letters}</a>` : "–",
  },
  { title: "Cluster", value: (one) => one.url, cell: (one) => one.url },
];

/** @type {Record<string, { yes: string, done: string, text: string }>} */
const ACTIONS = {
  pause: { yes: "Pause", done: "paused", text: "Its tasks stay and read nothing until it is resumed." },
  resume: { yes: "Resume", done: "resumed", text: "It goes on where it stopped." },
  restart: {
    yes: "Restart",
    done: "restarted",
    text: "The connector and its tasks start again from their last offsets.",
  },
  stop: { yes: "Stop", done: "stopped", text: "Its tasks end. Its offsets and its configuration stay." },
};

/**
 * @param {Known} connector
 * @param {string} action
 */
async function act(connector, action) {
  const { yes, done, text } = ACTIONS[action];
  return confirmed({ title: `${yes} ${connector.name}?`, text, yes }, async () => {
    const answer = await post(["connectors", connector.cluster, connector.name, action]);
    const states = [answer.connector.state, ...(answer.connector.tasks ?? []).map((task) => task.state)];
    const now = [...new Set(states)].join(" and ").toLowerCase();
    if (!answer.done)
      throw new ApiError(`${connector.name} is not ${done} after ${answer.waited_seconds} s: it is ${now}`, {
        next: "look at the log of its worker",
      });
    return `${connector.name} was ${done}: it is ${now}.`;
  });
}

/** @param {{ title: string, trace: string }} props */
const Trace = ({ title, trace }) =>
  html`<section class="failure"><p><strong>${title}</strong></p><p>${cause(trace)}</p><${Whole} text=${trace} what=${`the trace: ${title}`} /></section>`;

/** @type {Column<ConnectTask>[]} */
const TASKS = [
  { title: "Task", head: true, value: (task) => task.id, cell: (task) => task.id },
  { title: "State", value: (task) => task.state, cell: (task) => html`<${ConnectState} state=${task.state} />` },
  { title: "Records", number: true, value: (task) => task.records_total, cell: (task) => count(task.records_total) },
  {
    title: "Left out",
    number: true,
    value: (task) => task.dead_letters_total,
    cell: (task) => html`<span class=${task.mostly_bad ? "bad" : ""}>${count(task.dead_letters_total)}</span>`,
  },
  { title: "Worker", value: (task) => task.worker, cell: (task) => task.worker || "–" },
];

/** @param {unknown} value */
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
/** @typedef {[unknown, unknown]} Pair */
/** @type {(first: string, second: string) => Column<Pair>[]} */
const pairs = (first, second) => [
  { title: first, head: true, value: (row) => text(row[0]), cell: (row) => breakable(text(row[0])) },
  { title: second, cell: (row) => html`<span class="break">${text(row[1])}</span>` },
];

/**
 * Offsets as Kafka Connect gives them ({offsets: [{partition, offset}]}), or as a map.
 * @param {unknown} offsets
 * @returns {Pair[]}
 */
function offsetRows(offsets) {
  const known = typeof offsets === "object" && offsets !== null ? offsets : {};
  const list = "offsets" in known ? known.offsets : known;
  return Array.isArray(list) ? list.map((one) => [one.partition, one.offset]) : Object.entries(known);
}

/** @param {{ cluster: string, name: string, readOnly: boolean }} props */
function Connector({ cluster, name, readOnly }) {
  const { data, error, loading, reload } = useGet(["connectors", cluster, name], {}, { every: 3_000 });
  if (!data)
    return html`${loading && html`<${Loading} what=${name} />`}<${Failure} error=${error} onRetry=${reload} />`;
  const connector = data;
  const traces = (connector.tasks ?? []).filter((task) => task.trace);
  return html`
    <div class="filters">
      <${ConnectState} state=${connector.state} />
      ${failedTasks(connector) > 0 && html`<${State} state="failed" word=${`${many(failedTasks(connector), "task")} failed`} />`}
      ${Object.entries(ACTIONS).map(([action, { yes }]) => html`<button key=${action} type="button" disabled=${readOnly} onClick=${() => act(connector, action).then(reload)}>${yes}</button>`)}
      ${readOnly && html`<span class="quiet">Read only: start the console with --allow-actions to act.</span>`}
    </div>
    <${Failure} error=${error} />
    <${Failure} error=${connector.problem && { message: connector.problem }} />
    ${connector.trace && html`<${Trace} title="The connector failed" trace=${connector.trace} />`}
    ${traces.map((task) => html`<${Trace} key=${task.id} title=${`Task ${task.id} failed`} trace=${task.trace} />`)}
    <section class="card" aria-labelledby="tasks"><h2 id="tasks">Tasks</h2><${Table} caption="Tasks" columns=${TASKS} rows=${connector.tasks ?? []} keyOf=${(/** @type {ConnectTask} */ task) => task.id} empty="No task runs." /></section>
    <section class="card" aria-labelledby="offsets"><h2 id="offsets">Offsets</h2><${Table} caption="Offsets" columns=${pairs("Partition", "Offset")} rows=${offsetRows(connector.offsets)} keyOf=${(/** @type {Pair} */ row) => text(row[0])} empty="It has no offsets yet, or its cluster does not tell them." /></section>
    <section class="card" aria-labelledby="config"><h2 id="config">Configuration</h2><${Table} caption="Configuration" columns=${pairs("Property", "Value")} rows=${Object.entries(connector.config ?? {}).sort()} keyOf=${(/** @type {Pair} */ row) => text(row[0])} /></section>
  `;
}

const EMPTY = html`No connector is known: start the console with <code>--connect URL</code>, the address of a Kafka Connect cluster or
  of a <code>penstock connect</code>.`;

function All() {
  const { data, error, loading, reload } = useGet(["connectors"], {}, { every: 3_000 });
  return html`
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="connectors" />`}
    ${data?.filter((one) => one.error).map((one) => html`<${Failure} key=${one.url} error=${{ message: one.error, where: one.url, next: "check that the Connect cluster runs" }} />`)}
    ${data && html`<section class="card"><${Table} caption="Connectors, failed ones first" columns=${COLUMNS} rows=${data.filter((one) => !one.error)} keyOf=${(/** @type {Known} */ one) => `${one.cluster} ${one.name}`} first=${{ title: "State", down: false }} empty=${EMPTY} /></section>`}
  `;
}

/** @param {{ args: string[] }} props */
export function Connectors({ args: [cluster = "", name = ""] }) {
  const overview = useOverview();
  useEffect(() => {
    document.title = `${name || "Connectors"} · Penstock`;
  }, [name]);
  return html`
    <div class="page-head"><h1>${name || "Connectors"}</h1>${name && html`<a class="quiet" href=${href("connectors")}>All connectors</a>`}</div>
    ${name ? html`<${Connector} key=${name} cluster=${cluster} name=${name} readOnly=${overview.read_only} />` : html`<${All} />`}
  `;
}
