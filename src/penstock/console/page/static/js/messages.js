// A list of messages of which only the seen rows are in the page, and one message whole beside it.
// @ts-check
/** @import { Message } from "../../types" */
/** @import { ComponentChildren, RefObject } from "preact" */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { indented } from "./exact_json.js";
import { bytes, many, time, zone } from "./format.js";
import { Copy } from "./notices.js";

const ROW = 32; // pixels, also in parts.css
const MARGIN = 10; // rows drawn above and below the seen ones

/** @param {Message} record */
export const idOf = (record) => `${record.partition}/${record.offset}`;

/** @param {string | null} value */
const firstLine = (value) => (value ?? "").slice(0, 240).replaceAll(/\s+/g, " ");

/**
 * A value as text: JSON is indented where it is short enough for that to be quick.
 * @param {string | null | undefined} value
 * @param {string | undefined} format
 */
function pretty(value, format) {
  if (value === null || value === undefined) return "null";
  if (!["json", "avro", "protobuf"].includes(format ?? "") || value.length > 200_000) return value;
  try {
    return indented(value);
  } catch {
    return value; // cut off, or not JSON
  }
}

/** @typedef {(record: Message) => ComponentChildren} Extra */

/**
 * @param {object} props
 * @param {Message} props.record
 * @param {boolean} props.chosen
 * @param {(id: string) => void} props.onChoose
 * @param {number} props.index
 * @param {Extra} [props.extra]
 */
function Row({ record, chosen, onChoose, index, extra }) {
  const id = idOf(record);
  return html`<tr aria-rowindex=${index + 2} class=${chosen ? "chosen" : ""} onClick=${() => onChoose(id)}>
    ${extra && html`<td class="pick" onClick=${(/** @type {Event} */ event) => event.stopPropagation()}>${extra(record)}</td>`}
    <td><button type="button" class="plain" aria-pressed=${String(chosen)} data-row=${id}>${time(record.timestamp, { milliseconds: true })}</button></td>
    <td class="number extra">${record.partition}</td>
    <td class="number">${record.offset}</td>
    <td class="cut">${record.key === null ? html`<span class="quiet">null</span>` : firstLine(record.key)}</td>
    <td class="cut">${record.value === null ? html`<span class="quiet">null</span>` : firstLine(record.value)}</td>
    <td class="number extra">${bytes(record.size)}</td>
  </tr>`;
}

/**
 * Keep the seen rows where they are while new ones come above them, unless the list is at its top.
 * @param {RefObject<HTMLElement | null>} place
 * @param {Message[]} records
 */
function useSteady(place, records) {
  const first = useRef(/** @type {string | null} */ (null));
  useLayoutEffect(() => {
    const added = first.current ? records.findIndex((record) => idOf(record) === first.current) : 0;
    if (place.current && added > 0 && place.current.scrollTop > 0) place.current.scrollTop += added * ROW;
    first.current = records.length ? idOf(records[0]) : null;
  }, [records]);
}

/**
 * `records` are in the order to show them; `extra(record)` makes a first cell; `empty` says why there is none.
 * @param {object} props
 * @param {Message[]} props.records
 * @param {string | undefined} props.chosen
 * @param {(id: string) => void} props.onChoose
 * @param {string} props.caption
 * @param {Extra} [props.extra]
 * @param {string} props.empty
 */
export function MessageList({ records, chosen, onChoose, caption, extra, empty }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const [seen, setSeen] = useState({ top: 0, height: 480 });
  const first = Math.max(0, Math.floor(seen.top / ROW) - MARGIN);
  const last = Math.min(records.length, Math.ceil((seen.top + seen.height) / ROW) + MARGIN);
  const columns = extra ? 7 : 6;
  // Times of today have no date, and their column may be narrow.
  const midnight = new Date().setHours(0, 0, 0, 0);
  const today = records.every((record) => Date.parse(record.timestamp ?? "") >= midnight);
  const look = () => {
    if (place.current) setSeen({ top: place.current.scrollTop, height: place.current.clientHeight });
  };
  useSteady(place, records);
  useEffect(look, [records.length]);
  const press = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target instanceof HTMLElement ? event.target.dataset.row : undefined;
    const next = records[records.findIndex((record) => idOf(record) === row) + (step ?? 0)];
    if (!step || !row || !next) return;
    event.preventDefault();
    onChoose(idOf(next));
    const buttons = /** @type {NodeListOf<HTMLElement> | undefined} */ (place.current?.querySelectorAll("[data-row]"));
    [...(buttons ?? [])].find((button) => button.dataset.row === idOf(next))?.focus();
  };
  return html`<div class="scroll messages" ref=${place} tabindex="0" role="region" aria-label=${caption} onScroll=${look} onKeyDown=${press}>
    <table class=${today ? "today" : ""} aria-rowcount=${records.length + 1}>
      <caption class="unseen">${caption}</caption>
      <colgroup>${extra && html`<col class="pick" />`}<col class="time" /><col class="short extra" /><col class="short" /><col class="key" /><col /><col class="short extra" /></colgroup>
      <thead><tr>${extra && html`<th scope="col"><span class="unseen">Chosen</span></th>`}<th scope="col">Time (${zone()})</th><th scope="col" class="number extra">Partition</th><th scope="col" class="number">Offset</th><th scope="col">Key</th><th scope="col">Value</th><th scope="col" class="number extra">Size</th></tr></thead>
      <tbody>
        ${first > 0 && html`<tr aria-hidden="true"><td colspan=${columns} style=${{ height: `${first * ROW}px` }}></td></tr>`}
        ${records.slice(first, last).map((record, at) => html`<${Row} key=${idOf(record)} record=${record} index=${first + at} chosen=${idOf(record) === chosen} onChoose=${onChoose} extra=${extra} />`)}
        ${last < records.length && html`<tr aria-hidden="true"><td colspan=${columns} style=${{ height: `${(records.length - last) * ROW}px` }}></td></tr>`}
      </tbody>
    </table>
    ${!records.length && html`<p class="empty">${empty}</p>`}
  </div>`;
}

/** @param {{ title: string, text: string, format: string }} props */
function Part({ title, text, format }) {
  return html`<section class="message-part">
    <div class="heading"><h3>${title}</h3><span class="tag">${format}</span><${Copy} text=${text} what=${title} /></div>
    <pre tabindex="0" role="region" aria-label=${title}>${text}</pre>
  </section>`;
}

/**
 * One message whole: where it stands, key, value and headers.
 * @param {{ record: Message, onClose: () => void }} props
 */
export function Message({ record, onClose }) {
  return html`<aside class="card message" aria-label="Message">
    <div class="heading"><h2>Partition ${record.partition}, offset ${record.offset}</h2><button type="button" class="small" onClick=${onClose}>Close</button></div>
    <p class="quiet">${time(record.timestamp, { milliseconds: true })} · ${bytes(record.size)}${record.truncated ? " · only its beginning is shown; download it to see all" : ""}</p>
    ${record.origin && html`<p class="quiet">from ${record.origin.topic}, partition ${record.origin.partition}, offset ${record.origin.offset}</p>`}
    <${Part} title="Key" text=${pretty(record.key, record.key_format)} format=${record.key_format ?? "null"} />
    <${Part} title="Value" text=${pretty(record.value, record.value_format)} format=${record.value_format ?? "null"} />
    ${record.headers && record.headers.length > 0 && html`<section class="message-part"><h3>${many(record.headers.length, "header")}</h3><dl class="pairs">${record.headers.map(([name, value], at) => html`<div key=${at}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`}
  </aside>`;
}
