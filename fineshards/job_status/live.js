"use strict";
// Asks for the status again and again, and shows what has changed.

const WAIT = 2000;
// A look at a large folder far away takes long; its server retries for minutes.
const PATIENCE = 60000;
const find = (id) => document.getElementById(id);

function make(name, text = "", kind = "") {
  const element = document.createElement(name);
  element.textContent = text;
  element.className = kind;
  return element;
}

// Only what differs is written, so that a selection of text lasts.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function replace(element, key, children) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...children());
}

// Names and values; the values change more often than the names.
function showPairs(list, pairs) {
  replace(list, JSON.stringify(pairs.map(([name]) => name)), () =>
    pairs.map(([name]) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd"));
      return pair;
    }),
  );
  pairs.forEach(([, value], number) => say(list.children[number].lastChild, value));
}

function stageItem(stage) {
  const item = make("li", "", stage.state);
  if (stage.state === "now") item.setAttribute("aria-current", "step");
  item.append(make("strong", stage.name), make("span", `, ${stage.state}`, "hidden"));
  item.append(make("span", "", "detail"));
  if (stage.percent !== null) {
    const bar = make("span", "", "meter");
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", stage.name);
    bar.setAttribute("aria-valuemin", "0");
    bar.setAttribute("aria-valuemax", "100");
    bar.append(make("span"));
    item.append(bar);
  }
  return item;
}

function showStages(stages) {
  const list = find("stages");
  const key = stages.map((stage) => [stage.name, stage.state, stage.percent !== null]);
  replace(list, JSON.stringify(key), () => stages.map(stageItem));
  stages.forEach((stage, number) => {
    const item = list.children[number];
    const percent = stage.percent === null ? "" : `${stage.percent} %, `;
    say(item.querySelector(".detail"), percent + stage.detail);
    const bar = item.querySelector(".meter");
    if (bar) {
      bar.setAttribute("aria-valuenow", stage.percent);
      bar.firstChild.style.width = `${stage.percent}%`;
    }
  });
}

function showNote(text, wrong) {
  find("note").hidden = !text;
  say(find("note"), text || "");
  find("state").classList.toggle("wrong", wrong);
}

function show(answer) {
  say(find("name"), answer.folder.replace(/\/+$/, "").split("/").pop() || answer.folder);
  say(find("folder"), answer.folder);
  if (answer.error) {
    say(find("state"), "cannot be read");
    say(find("said"), answer.error);
    document.title = `cannot be read · ${find("name").textContent}`;
    showNote(answer.error, true);
    return;
  }
  const { state, stages, figures, note, writing, splits, commands } = answer.shown;
  const percent = stages.map((stage) => stage.percent).find((each) => each !== null);
  const share = percent === undefined ? "" : `${percent} % `;
  say(find("state"), state);
  find("state").classList.toggle("finished", state === "finished");
  document.title = `${share}${state} · ${find("name").textContent}`;
  showNote(note, Boolean(note));
  say(find("said"), note || state);
  showPairs(find("figures"), figures);
  showStages(stages);
  find("present").hidden = false;
  find("now").hidden = !writing.length;
  showPairs(find("writing"), writing);
  find("finished").hidden = !splits.length;
  replace(find("splits"), JSON.stringify(splits), () =>
    splits.map(([split, ...counts]) => {
      const row = make("tr");
      row.append(make("th", split), ...counts.map((count) => make("td", count, "number")));
      row.firstChild.scope = "row";
      return row;
    }),
  );
  say(find("commands"), commands.join("\n"));
  say(find("looked"), `, last at ${new Date().toLocaleTimeString()}`);
}

function showNoAnswer() {
  const sentence = "fineshards status --serve does not answer: it was ended, or the output folder " +
    "is slow. The job does not depend on it.";
  say(find("state"), "no answer");
  say(find("said"), sentence);
  document.title = `no answer · ${find("name").textContent}`;
  showNote(sentence, true);
}

async function ask() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(PATIENCE) });
    return await answer.json();
  } catch {
    return null;
  }
}

async function look() {
  const answer = await ask();
  setTimeout(look, WAIT);
  if (answer === null) showNoAnswer();
  else show(answer);
}

look();
