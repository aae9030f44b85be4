// The picture of a comparison: of two checkpoints, or of several, each with the next one.
(() => {
  const { layers, roles, kinds, pairs, tensors } = values;
  const measures = ["relative norm", "1 - cosine", "share of changed elements"];
  const measure = () => Number(byId("measure").value);
  const role = () => Number(byId("role").value);
  const pair = () => pairs[Number(byId("pair").value)];
  // Three figures [relative norm, cosine, unchanged share] as a change, which is 0 for equal tensors.
  const changeOf = (figures) => {
    const value = figures[measure()];
    if (value === null || value === undefined) return null;
    return measure() ? Math.max(0, 1 - value) : value;
  };
  const wordsOf = (figures) => `relative norm ${figure(figures[0])}, cosine ${figures[1] === null ? "-" : figures[1].toFixed(6)}, unchanged ${share(figures[2])}`;
  const shortLayer = (layer) => layers[layer].split(".").pop();
  const isNumbered = (layer) => /(^|\.)\d+$/.test(layers[layer]);
  const table = (id, heads, numbers, rows) => {
    const head = make("tr");
    heads.forEach((text, n) => head.append(make("th", text, numbers.includes(n) ? "number" : "")));
    byId(id).tHead.replaceChildren(head);
    byId(id).tBodies[0].replaceChildren(...rows.map((cells) => {
      const row = make("tr");
      cells.forEach((text, n) => row.append(make("td", text, numbers.includes(n) ? "number" : "")));
      return row;
    }));
    nameCells(byId(id));
  };
  // From a change to a part of the colour: shares as they are, others by powers of ten.
  const rampOf = (changes) => {
    const known = changes.filter((value) => value > 0);
    const [least, greatest] = [Math.max(Math.min(...known), Math.max(...known) / 1e6), Math.max(...known)];
    if (measure() === 2) return { texts: ["0 %", "100 %"], part: (value) => value };
    const span = Math.log10(greatest / least) || 1;
    return { texts: [known.length ? figure(least) : "0", known.length ? figure(greatest) : "0"], part: (value) => value > 0 ? 0.12 + 0.88 * Math.max(0, 1 - Math.log10(greatest / value) / span) : 0 };
  };

  const drawHeat = (rows, columns, figuresAt, wordsAt, pick, isPartial = () => false) => {
    const all = rows.flatMap((_, r) => columns.map((__, c) => figuresAt(r, c))).filter(Boolean).map(changeOf).filter((value) => value !== null);
    const ramp = rampOf(all);
    drawCells(byId("heat"), {
      name: `${measures[measure()]} of ${roles[role()]}`,
      rows, columns, pick, isMarked: isPartial,
      colourOf: (r, c) => { const found = figuresAt(r, c); if (!found) return isPartial(r, c) ? "var(--none)" : null; const value = changeOf(found); return value === null ? "var(--none)" : mixed(ramp.part(value)); },
      wordsOf: (r, c) => { const found = figuresAt(r, c); return `${wordsAt(r, c)}: ${found ? wordsOf(found) : "not compared"}${found && isPartial(r, c) ? "; not all tensors were compared" : ""}`; },
    });
    if (rows.length && columns.length) drawScale(byId("heat"), ramp.texts, measure() === 2 ? [0, 1] : [0.12, 1]);
  };
  const drawSeries = () => {
    const at = new Map();
    pairs.forEach((each, c) => each.changes.forEach((row) => { if (row[0] === role()) at.set(`${row[1]} ${c}`, row.slice(2)); }));
    const partial = new Set(pairs.flatMap((each, c) => each.partial.filter((row) => row[0] === role()).map((row) => `${row[1]} ${c}`)));
    const shown = layers.map((_, layer) => layer).filter((layer) => pairs.some((_, c) => at.has(`${layer} ${c}`) || partial.has(`${layer} ${c}`)));
    byId("lines").hidden = true;
    byId("changes-note").textContent = `A row is a layer, and a column the change from one checkpoint to the next. The colour grows with the change; grey was not measured.${partial.size ? " A ring marks a layer with tensors on one side only, or not compared." : ""} A click on a cell shows its comparison below.`;
    drawHeat(shown.map((layer) => layers[layer]), pairs.map((each) => each.label), (r, c) => at.get(`${shown[r]} ${c}`), (r, c) => `${layers[shown[r]]}, ${pairs[c].label}`, (r, c) => { byId("pair").value = String(c); drawPair(); }, (r, c) => partial.has(`${shown[r]} ${c}`));
  };
  const drawOne = () => {
    const names = [...new Set(pairs[0].changes.map((row) => row[0]))];
    byId("lines").replaceChildren(...names.map(() => make("div")));
    names.forEach((each, place) => drawLines(byId("lines").children[place], {
      title: `${roles[each]}: ${measures[measure()]}`,
      isLog: measure() !== 2,
      empty: "no change",
      series: [{ name: measures[measure()], colour: "var(--focus)", points: pairs[0].changes.filter((row) => row[0] === each).map((row) => [row[1], changeOf(row.slice(2))]) }],
      labelOf: shortLayer,
      nameOf: (layer) => layers[layer],
      pick: (layer) => { byId("find").value = `${layers[layer]}.`; drawTensors(); },
    }));
    const cells = new Map();
    tensors.forEach((tensor) => { if (tensor[1] === role() && isNumbered(tensor[2])) { const key = `${tensor[3]} ${tensor[2]}`; const old = cells.get(key); if (!old || changeOf(tensor.slice(4)) > changeOf(old.slice(4))) cells.set(key, tensor); } });
    const shownKinds = kinds.map((_, kind) => kind).filter((kind) => layers.some((_, layer) => cells.has(`${kind} ${layer}`)));
    const shown = layers.map((_, layer) => layer).filter((layer) => shownKinds.some((kind) => cells.has(`${kind} ${layer}`)));
    const at = (r, c) => { const tensor = cells.get(`${shownKinds[r]} ${shown[c]}`); return tensor && tensor.slice(4); };
    byId("changes-note").textContent = "The lines join all tensors of a layer. In the map, a row is a kind of tensor and a column a layer; the colour grows with the change.";
    byId("heat").hidden = !shown.length;
    if (shown.length) drawHeat(shownKinds.map((kind) => kinds[kind].replace(/\.weight$/, "")), shown.map(shortLayer), at, (r, c) => `${layers[shown[c]]}.${kinds[shownKinds[r]]}`, (r, c) => { byId("find").value = `${layers[shown[c]]}.${kinds[shownKinds[r]].split("*")[0]}`; drawTensors(); });
  };
  const drawTensors = () => {
    const text = byId("find").value.toLowerCase();
    const found = tensors.filter((tensor) => tensor[0].toLowerCase().includes(text));
    byId("found").textContent = `${count(found.length)} of ${count(tensors.length)} tensors${found.length > 200 ? "; the first 200 are shown" : ""}`;
    table("tensors", ["tensor", "role", "relative norm", "cosine", "unchanged"], [2, 3, 4], found.slice(0, 200).map((tensor) => [tensor[0], roles[tensor[1]], figure(tensor[4]), tensor[5] === null ? "-" : tensor[5].toFixed(6), share(tensor[6])]));
  };
  const drawPair = () => {
    const { most, only_a: onlyA, only_b: onlyB, not_compared: not, run } = pair();
    const ofRole = most.filter((each) => each[1] === role());
    const isCompared = names.length > 0;
    byId("most-role").textContent = isCompared ? roles[role()] : "";
    table("most", ["tensor", "relative norm", "cosine", "unchanged", "largest difference", "different elements"], [1, 2, 3, 4, 5], ofRole.map(([name, , relative, cosine, unchanged, largest, differing, elements]) => [name, figure(relative), cosine === null ? "-" : cosine.toFixed(6), share(unchanged), figure(largest), `${count(differing)} of ${count(elements)}`]));
    if (!ofRole.length) {
      const none = make("td", isCompared ? `No tensor${most.length ? " of this role" : ""} differs in its values.` : "No tensor was compared.", "muted");
      none.colSpan = 6;
      byId("most").tBodies[0].appendChild(make("tr")).append(none);
    }
    byId("only").replaceChildren();
    [["only in the first", onlyA], ["only in the second", onlyB], ["other shape or type, or not readable", not]].forEach(([title, [number, names]]) => {
      if (!number) return;
      const list = make("ul", undefined, "list");
      names.forEach((name) => list.append(make("li", name)));
      if (number > names.length) list.append(make("li", `and ${count(number - names.length)} more`, "muted"));
      byId("only").append(make("h3", `${title}: ${count(number)} ${number === 1 ? "tensor" : "tensors"}`), list);
    });
    if (!byId("only").childElementCount) byId("only").append(make("p", "Both have the same tensors.", "muted"));
    byId("run-section").hidden = !run.length;
    table("run", ["setting", "first", "second"], [], run);
  };

  const draw = () => (tensors ? drawOne : drawSeries)();
  const names = [...new Set(pairs.flatMap((each) => each.changes.map((row) => row[0])))];
  names.sort((a, b) => a - b).forEach((each) => { const option = make("option", roles[each]); option.value = String(each); byId("role").append(option); });
  pairs.forEach((each, n) => { const option = make("option", each.label); option.value = String(n); byId("pair").append(option); });
  byId("pair-label").hidden = pairs.length < 2;
  byId("measure").addEventListener("change", draw);
  byId("role").addEventListener("change", () => { draw(); drawPair(); });
  byId("pair").addEventListener("change", drawPair);
  byId("find").addEventListener("input", drawTensors);
  byId("tensors-section").hidden = !tensors?.length;
  if (names.length) { drawings.push(draw); draw(); } else byId("changes-note").textContent = "No tensor was compared.";
  drawPair();
  if (tensors) drawTensors();
})();
