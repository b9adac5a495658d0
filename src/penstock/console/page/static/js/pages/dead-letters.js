// Dead letters: records that could not be written, by reason; they can be sent again to the topic that they came from.
// @ts-check
/** @import { Column, DeadLetterTopic, Letters as Body, Message as Letter, Params, Query, Reason, Sent } from "../../../types" */
import { useEffect, useMemo, useState } from "preact/hooks";
import { html } from "../html.js";
import { ApiError, post, useGet } from "../api.js";
import { confirmed } from "../confirm.js";
import { count, many, time } from "../format.js";
import { ChooseKafka, KafkaName, useKafka } from "../kafka.js";
import { href, setQuery, useRoute } from "../route.js";
import { useOverview } from "../live.js";
import { Message, MessageList, idOf } from "../messages.js";
import { Failure, Loading, notify } from "../notices.js";
import { breakable } from "../marks.js";
import { Table } from "../table.js";

const LIMIT = 500; // letters that are listed

/** @typedef {DeadLetterTopic & { topic: string }} NamedTopic */
/** @type {(link: Params) => Column<NamedTopic>[]} */
const topicColumns = (link) => [
  {
    title: "Topic",
    head: true,
    value: (topic) => topic.topic,
    cell: (topic) => html`<a href=${href("dead-letters", [topic.topic], link)}>${breakable(topic.topic)}</a>`,
  },
  { title: "Records", number: true, value: (topic) => topic.records, cell: (topic) => count(topic.records) },
  {
    title: "Reasons",
    cell: (topic) =>
      Object.entries(topic.reasons ?? {}).map(
        ([reason, number]) => html`<div key=${reason}>${reason}: ${count(number)}</div>`,
      ),
  },
];

/** @type {(topic: string, link: Params, chosen: string | undefined) => Column<Reason>[]} */
function reasons(topic, link, chosen) {
  return [
    {
      title: "Reason",
      head: true,
      value: (row) => row.reason,
      cell: (row) =>
        html`<a href=${href("dead-letters", [topic], { ...link, reason: row.reason === chosen ? "" : row.reason })} aria-current=${row.reason === chosen ? "true" : undefined}>${row.reason}</a>`,
    },
    { title: "Records", number: true, value: (row) => row.count, cell: (row) => count(row.count) },
    { title: "First", value: (row) => row.first, cell: (row) => time(row.first) },
    { title: "Last", value: (row) => row.last, cell: (row) => time(row.last) },
  ];
}

/** @typedef {{ topic: string, kafka: string }} Place */
/** @typedef {(rest: Body | null) => void} OnRest gets the body that sends what is left, null at the end. */

/**
 * Send again what `body` names, and say what came of it.
 * @param {Place} place
 * @param {Body} body
 * @param {string} what
 * @param {OnRest} [onRest]
 */
async function sendAgain({ topic, kafka }, body, what, onRest = () => {}) {
  const wanted = {
    title: `Send ${what} again?`,
    text: "Each record goes to the topic and partition that its headers name. The dead letters stay in their topic: sending twice writes twice.",
    yes: "Send again",
  };
  await confirmed(wanted, () => sendAll({ topic, kafka }, body, onRest));
}

/**
 * Each request sends a part; the next one goes on where it ended, so that no letter is sent twice.
 * @param {Place} place
 * @param {Body} body
 * @param {OnRest} onRest
 */
async function sendAll({ topic, kafka }, body, onRest) {
  const failures = [];
  let total = 0;
  /** @type {Body | null} */
  let next = body;
  try {
    while (next) {
      /** @type {Sent} */
      const answer = await post(["dead-letters", topic, "send"], next, { kafka });
      total += answer.sent;
      failures.push(...answer.failed);
      next = answer.next;
      onRest(next);
      if (answer.error) throw new ApiError(answer.error, { next: "send the rest again" });
      if (next) notify(`${many(total, "record")} sent again so far, ${count(answer.left)} are left.`);
    }
  } catch (error) {
    if (total) notify(`${many(total, "record")} sent again before this failure.`);
    throw error;
  } finally {
    for (const one of failures.slice(0, 3))
      notify(`Partition ${one.partition}, offset ${one.offset} was not sent: ${one.why}`, "bad");
    if (failures.length > 3) notify(`${many(failures.length - 3, "more record")} could not be sent.`, "bad");
  }
  return `${many(total, "record")} sent again.`;
}

/** @param {{ topic: string, query: Query, readOnly: boolean }} props */
function Letters({ topic, query, readOnly }) {
  const { kafka, link } = useKafka();
  const asked = { kafka, reason: query.reason, limit: LIMIT };
  const { data, error, loading, reload } = useGet(["dead-letters", topic], asked);
  const [picked, setPicked] = useState(/** @type {Set<string>} */ (new Set()));
  const [rest, setRest] = useState(/** @type {Body | null} */ (null)); // the body that sends what a failure has left
  const [busy, setBusy] = useState(false);
  useEffect(() => setPicked(new Set()), [topic, query.reason]);
  useEffect(() => setRest(null), [topic, query.reason]);
  const records = useMemo(() => [...(data?.records ?? [])].reverse(), [data]); // the newest first
  const chosen = records.find((record) => idOf(record) === query.shown);
  const toggle = (/** @type {string} */ id) =>
    setPicked((old) => new Set(old.has(id) ? [...old].filter((one) => one !== id) : [...old, id]));
  const letters = records
    .filter((record) => picked.has(idOf(record)))
    .map((record) => [record.partition, record.offset]);
  const all = query.reason ? { reason: query.reason } : { all: true };
  const send = async (
    /** @type {Body} */ body,
    /** @type {string} */ what,
    /** @type {OnRest} */ onRest = () => {},
  ) => {
    setBusy(true);
    await sendAgain({ topic, kafka }, body, what, onRest);
    setBusy(false);
    reload();
  };
  const pick = (/** @type {Letter} */ record) =>
    html`<input type="checkbox" aria-label=${`Partition ${record.partition}, offset ${record.offset}`} checked=${picked.has(idOf(record))} onChange=${() => toggle(idOf(record))} />`;
  return html`
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="dead letters" />`}
    ${
      data &&
      html`
      <section class="card" aria-labelledby="reasons"><h2 id="reasons">Reasons</h2><${Table} caption="Reasons" columns=${reasons(topic, link, query.reason)} rows=${data.reasons} keyOf=${(/** @type {Reason} */ row) => row.reason} first=${{ title: "Records", down: true }} /></section>
      <div class="filters">
        <button type="button" disabled=${readOnly || busy || !letters.length} onClick=${() => send({ letters }, many(letters.length, "record"))}>Send chosen again (${letters.length})</button>
        <button type="button" disabled=${readOnly || busy || !records.length} onClick=${() => send(all, query.reason ? `all with “${query.reason}”` : "all", setRest)}>${query.reason ? "Send all of this reason again" : "Send all again"}</button>
        ${rest && !busy && html`<button type="button" disabled=${readOnly} onClick=${() => send(rest, "the rest", setRest)}>Send the rest again</button>`}
        ${query.reason && html`<a href=${href("dead-letters", [topic], link)}>All reasons</a>`}
        <span class="quiet">${[many(records.length, "record"), data.more && "only the newest are listed", data.looked_at_all === false && "the reasons are those of the newest 10,000"].filter(Boolean).join(" · ")}</span>
        ${readOnly && html`<span class="quiet">Read only: start the console with --allow-actions to send again.</span>`}
      </div>
      <div class="beside">
        <section class="card"><${MessageList} records=${records} chosen=${query.shown} caption=${`Dead letters in ${topic}`} empty="No dead letter here: the topic is empty, or none has this reason." onChoose=${(/** @type {string} */ shown) => setQuery({ shown })} extra=${pick} /></section>
        ${chosen && html`<${Message} record=${chosen} onClose=${() => setQuery({ shown: "" })} />`}
      </div>`
    }
  `;
}

const EMPTY = html`No dead letters: no topic has records with their headers. A pipeline writes them with <code>kafka.dead_letters</code>, a
  connector of Kafka Connect with <code>errors.deadletterqueue.topic.name</code>.`;

function Topics() {
  const { kafka, link } = useKafka();
  const { data, error, loading, reload } = useGet(["dead-letters"], { kafka }, { every: 10_000 });
  const rest = data?.find((one) => one.topic === null);
  const found = data?.flatMap((one) => (one.topic === null ? [] : [{ ...one, topic: one.topic }]));
  return html`
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="dead letters" />`}
    ${rest && html`<p class="quiet">${count(rest.looked_at)} of ${many(rest.topics, "topic")} looked at; the others may have dead letters, too.</p>`}
    ${data && html`<section class="card"><${Table} caption="Topics of dead letters" columns=${topicColumns(link)} rows=${found} keyOf=${(/** @type {NamedTopic} */ topic) => topic.topic} first=${{ title: "Records", down: true }} empty=${rest ? "None in the topics that were looked at." : EMPTY} /></section>`}
  `;
}

/** @param {{ args: string[] }} props */
export function DeadLetters({ args: [topic = ""] }) {
  const { query } = useRoute();
  const overview = useOverview();
  const { kafka, chosen, link } = useKafka();
  useEffect(() => {
    document.title = `${topic || "Dead letters"} · Penstock`;
  }, [topic]);
  return html`
    <div class="page-head"><h1>Dead letters</h1>${topic && html`<span>in <a href=${href("topics", [topic], link)}>${topic}</a></span><a class="quiet" href=${href("dead-letters", [], link)}>All topics of dead letters</a>`}<${KafkaName} /></div>
    ${!chosen && html`<${ChooseKafka} />`}
    ${chosen && (topic ? html`<${Letters} key=${`${kafka} ${topic}`} topic=${topic} query=${query} readOnly=${overview.read_only} />` : html`<${Topics} />`)}
  `;
}
