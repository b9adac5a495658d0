// The records that a search found, page by page, up to a bound.
// @ts-check
/** @import { Message, MessagePage, Params } from "../../types" */
/** @import { ApiError } from "./api.js" */
import { useEffect, useState } from "preact/hooks";
import { asApiError, get, useGet } from "./api.js";
import { many } from "./format.js";

export const MOST = 2_000;

/**
 * What "Show more" has read, and of which first page.
 * @typedef {object} Rest
 * @property {MessagePage | undefined} of
 * @property {Message[]} records
 * @property {MessagePage | null} last
 * @property {ApiError | null} error
 * @property {boolean} busy
 */
/** @type {Rest} */
const NONE = { of: undefined, records: [], last: null, error: null, busy: false };

/**
 * The newest first if the search starts at the newest, else the oldest first. `params` null asks for nothing.
 * @param {string} topic
 * @param {Params | null} params
 */
export function useRecords(topic, params) {
  const first = useGet(params && ["topics", topic, "records"], params ?? {});
  const [rest, setRest] = useState(NONE);
  useEffect(() => setRest(NONE), [first.data]);
  const newestFirst = params?.from === "latest";
  const own = rest.of === first.data ? rest : NONE;
  const last = own.last ?? first.data;
  const ordered = (/** @type {MessagePage} */ page) => (newestFirst ? [...page.records].reverse() : page.records);
  const records = first.data ? [...ordered(first.data), ...own.records] : [];
  const showMore = async () => {
    if (!last) return;
    const place = newestFirst ? { before: last.older } : { from: last.newer };
    setRest({ ...own, of: first.data, busy: true });
    try {
      const page = await get(["topics", topic, "records"], { ...params, ...place });
      setRest({ of: first.data, records: [...own.records, ...ordered(page)], last: page, error: null, busy: false });
    } catch (error) {
      setRest({ ...own, of: first.data, error: asApiError(error), busy: false });
    }
  };
  const more = Boolean(last?.more) && records.length < MOST;
  // A search ends after a number of records or seconds, whatever it found until then.
  const searched =
    last?.more && last.records.length < Number(params?.limit)
      ? `${many(last.searched ?? 0, "record")} looked at, there are more`
      : "";
  return {
    ...first,
    records,
    more,
    searched,
    full: records.length >= MOST,
    error: first.error ?? own.error,
    busy: own.busy,
    showMore,
  };
}
