// New messages of a topic as they come: a stream that can be paused. What comes while it is paused is counted, and the
// oldest messages are dropped above a bound, so that a page that is open for days stays small.
// @ts-check
/** @import { Message, Params } from "../../types" */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, address } from "./api.js";
import { MOST } from "./records.js";

/** @type {{ records: Message[], skipped: number, lost: boolean, error: ApiError | null }} */
const EMPTY = { records: [], skipped: 0, lost: false, error: null };

/**
 * The records of a topic as they come, the newest first; parameters as the API's. `on` opens the stream.
 * @param {string} topic
 * @param {Params} params
 * @param {boolean} on
 * @param {boolean} paused
 */
export function useTail(topic, params, on, paused) {
  const [shown, setShown] = useState(EMPTY);
  const [waiting, setWaiting] = useState(0);
  const held = useRef(/** @type {Message[]} */ ([]));
  const still = useRef(paused);
  still.current = paused;
  const key = on ? address(["topics", topic, "tail"], params) : "";
  const add = (/** @type {Message[]} */ records, /** @type {number} */ skipped) =>
    setShown((old) => ({
      ...EMPTY,
      records: [...records, ...old.records].slice(0, MOST),
      skipped: old.skipped + skipped,
    }));
  useEffect(() => {
    if (!key) return undefined;
    setShown(EMPTY);
    held.current = [];
    setWaiting(0);
    const source = new EventSource(key);
    source.addEventListener("records", (event) => {
      const { records, skipped = 0 } = JSON.parse(event.data);
      const newest = [...records].reverse();
      if (still.current) {
        held.current = [...newest, ...held.current].slice(0, MOST);
        setWaiting(held.current.length);
        setShown((old) => ({ ...old, skipped: old.skipped + skipped }));
      } else add(newest, skipped);
    });
    source.addEventListener("problem", (event) => {
      const { error, ...more } = JSON.parse(event.data);
      setShown((old) => ({ ...old, error: new ApiError(error, more) }));
      source.close();
    });
    source.addEventListener("open", () => setShown((old) => ({ ...old, lost: false })));
    source.addEventListener("error", () => setShown((old) => ({ ...old, lost: true })));
    return () => source.close();
  }, [key]);
  useEffect(() => {
    if (paused || !held.current.length) return;
    add(held.current, 0);
    held.current = [];
    setWaiting(0);
  }, [paused]);
  return { ...shown, waiting };
}
