// The messages of a topic: from a time, offset, partition or key, with a filter, as they come, and as a download.
// @ts-check
/** @import { Params, Query, Topic } from "../../../types" */
import { useEffect, useState } from "preact/hooks";
import { html, withValue } from "../html.js";
import { address, useGet } from "../api.js";
import { useRecords } from "../records.js";
import { count, many, zone } from "../format.js";
import { ChooseKafka, KafkaName, useKafka } from "../kafka.js";
import { go, href, setQuery, useRoute } from "../route.js";
import { useOverview } from "../live.js";
import { Message, MessageList, idOf } from "../messages.js";
import { Failure, Loading } from "../notices.js";
import { useTail } from "../tail.js";

const LIMITS = [50, 200, 500];

/**
 * The parameters of the API for what the form holds; a time of the form is in the browser's zone.
 * @param {Query} query
 */
function parameters({ start = "latest", at = "", partition = "", key = "", filter = "", limit = "50" }) {
  const time = new Date(at);
  const from =
    start === "offset" ? at : start === "time" ? (Number.isNaN(time.getTime()) ? "" : time.toISOString()) : start;
  return { partition, from: from || "latest", limit, key, filter };
}

/** @param {{ name: string, label: string, values: Query } & Record<string, unknown>} props */
function Field({ name, label, values, ...input }) {
  return html`<label class="field">${label}<input name=${name} value=${values[name] ?? ""} ...${input} /></label>`;
}

/** @param {{ query: Query, partitions: number, tailing: boolean }} props */
function Search({ query, partitions, tailing }) {
  const [values, setValues] = useState(query);
  useEffect(() => setValues(query), [query]);
  const change = (/** @type {Event} */ { target }) => {
    if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement)
      setValues({ ...values, [target.name]: target.value });
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    setQuery({ ...values, shown: "" });
  };
  const start = values.start ?? "latest";
  return html`<form class="card search-form" onSubmit=${submit} onChange=${change} onInput=${change}>
    <label class="field">From<select name="start" value=${start} disabled=${tailing}>
      <option value="latest">the newest</option><option value="earliest">the oldest</option><option value="time">a time</option><option value="offset">an offset</option></select></label>
    ${start === "time" && html`<${Field} name="at" label=${`Time (${zone()})`} type="datetime-local" step="1" required values=${values} />`}
    ${start === "offset" && html`<${Field} name="at" label="Offset" type="number" min="0" required values=${values} />`}
    <label class="field">Partition<select name="partition" value=${values.partition ?? ""}><option value="">all</option>${Array.from({ length: partitions }, (_, at) => html`<option key=${at} value=${at}>${at}</option>`)}</select></label>
    <${Field} name="key" label="Key" placeholder="exactly this key" values=${values} />
    <${Field} name="filter" label="Contains" placeholder="in key, value or header" values=${values} />
    <label class="field">At most<select name="limit" value=${values.limit ?? "50"} disabled=${tailing}>${LIMITS.map((limit) => html`<option key=${limit} value=${limit}>${limit}</option>`)}</select></label>
    <button type="submit" class="main">Search</button>
  </form>`;
}

/** @param {{ topic: string, params: Params }} props */
const Downloads = ({ topic, params }) => html`<span class="actions">Download
  ${["ndjson", "csv"].map((kind) => html`<a key=${kind} class="button small" download href=${address(["topics", topic, "download"], { ...params, as: kind })}>${kind === "csv" ? "CSV" : "NDJSON"}</a>`)}</span>`;

/** @param {{ topic: string, topics: Topic[] | undefined, link: Params }} props */
function TopicChoice({ topic, topics, link }) {
  const names = topics?.map((one) => one.name).filter((name) => name !== null) ?? [];
  const rest = topics?.find((one) => one.name === null);
  return html`<label>Topic <select value=${topic} onChange=${withValue((chosen) => go(href("topics", [chosen], link)))}>
    ${!names.includes(topic) && html`<option value=${topic}>${topic || "choose a topic"}</option>`}
    ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    ${rest && html`<option disabled>${count(rest.listed)} of ${many(rest.topics, "topic")} listed</option>`}</select></label>`;
}

/** @param {{ topic: string, kafka: string, query: Query, partitions: number }} props */
function Found({ topic, kafka, query, partitions }) {
  const tailing = Boolean(query.tail);
  const [paused, setPaused] = useState(false);
  const params = { kafka, ...parameters(query) };
  const search = useRecords(topic, tailing ? null : params);
  const { from, limit, ...tailParams } = params;
  const tail = useTail(topic, tailParams, tailing, paused);
  const records = tailing ? tail.records : search.records;
  const chosen = records.find((record) => idOf(record) === query.shown);
  const skipped = search.data?.skipped_batches ?? 0;
  const said = tailing
    ? [
        many(records.length, "message"),
        tail.skipped && `${many(tail.skipped, "message")} skipped, since more than 50 came in a second`,
        paused && `paused, ${many(tail.waiting, "new message")}`,
        tail.lost && "connection lost, connecting again …",
      ]
    : [
        search.data && many(records.length, "message"),
        search.searched,
        search.full && "download them to see more",
        skipped > 0 && `${many(skipped, "batch", "batches")} cannot be read`,
      ];
  const empty = tailing
    ? "No message yet: those that come from now on appear here."
    : params.key || params.filter || params.partition || params.from !== "latest"
      ? "No message fits the search."
      : "No message: the topic is empty.";
  return html`
    <${Search} query=${query} partitions=${partitions} tailing=${tailing} />
    <div class="filters">
      <button type="button" aria-pressed=${String(tailing)} onClick=${() => [setPaused(false), setQuery({ tail: tailing ? "" : "1", shown: "" })]}>Live tail</button>
      ${tailing && html`<button type="button" onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}</button>`}
      ${!tailing && html`<button type="button" onClick=${search.reload}>Read again</button>`}
      ${!tailing && search.more && html`<button type="button" disabled=${search.busy} onClick=${search.showMore}>Show more</button>`}
      <span class="quiet">${said.filter(Boolean).join(" · ")}</span>
      <${Downloads} topic=${topic} params=${params} />
    </div>
    <${Failure} error=${tailing ? tail.error : search.error} onRetry=${tailing ? null : search.reload} />
    ${search.loading && html`<${Loading} what="messages" />`}
    ${
      !search.loading &&
      html`<div class="beside">
      <section class="card"><${MessageList} records=${records} chosen=${query.shown} caption=${`Messages of ${topic}`} empty=${empty} onChoose=${(/** @type {string} */ shown) => setQuery({ shown })} /></section>
      ${chosen && html`<${Message} record=${chosen} onClose=${() => setQuery({ shown: "" })} />`}
    </div>`
    }
  `;
}

/** @param {{ args: string[] }} props */
export function Messages({ args: [topic = ""] }) {
  const { query } = useRoute();
  const { messages } = useOverview();
  const { kafka, chosen, link } = useKafka();
  const { data: topics, error } = useGet(chosen && ["topics"], { kafka }, { every: 15_000 });
  const about = topics?.find((one) => one.name === topic);
  useEffect(() => {
    document.title = `${topic || "Messages"} · Penstock`;
  }, [topic]);
  return html`
    <div class="page-head"><h1>Messages</h1><${TopicChoice} topic=${topic} topics=${topics} link=${link} /><${KafkaName} />
      ${about && html`<span class="quiet">${many(about.records, "record")} in ${many(about.partitions, "partition")}</span>`}</div>
    ${!chosen && html`<${ChooseKafka} />`}
    <${Failure} error=${error} />
    ${messages === false && html`<p class="failure">Messages are not shown: the console was started with <code>--no-messages</code>.</p>`}
    ${messages !== false && !topic && html`<p class="quiet">Choose a topic, or open one from <a href=${href("topics", [], link)}>the list of topics</a>.</p>`}
    ${messages !== false && topic && chosen && html`<${Found} key=${`${kafka} ${topic}`} topic=${topic} kafka=${kafka} query=${query} partitions=${about?.partitions ?? 0} />`}
  `;
}
