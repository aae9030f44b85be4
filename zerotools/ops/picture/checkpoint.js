// The picture of a checkpoint: its modules, its files, and the statistics of its values.
(() => {
  const [NAME, ROLE, DTYPE, SHAPE, ELEMENTS, BYTES, GROUP, FILES, WHOLE] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const WEIGHTS = new Set(["param", "param16"].map((role) => values.roles.indexOf(role)));
  const MOST_TILES = 600, LEAST_TILE = 600; // in number, and in square pixels
  const MOST_ROWS = 2000;

  // The states of a verification: [state, reasons, strip] of each file, and the state of each tensor
  const checks = values.checks;
  const STATES = ["whole", "unknown", "damaged"], STATE_COLOURS = ["var(--whole)", "var(--doubt)", "var(--damaged)"];
  const byCheck = () => byId("colour").value === "check";
  const colourOf = (number) => byCheck() ? STATE_COLOURS[number] || "var(--none)" : number < 0 ? "var(--none)" : `hsl(${(number * 137.508 + 205) % 360} 55% 68%)`;

  // The modules: a node for each part of a name. A weight in two roles counts once as parameters.
  // What is frozen, if the checkpoint records it, and what has other names too (tied weights)
  const frozen = new Set(values.frozen || []);
  const tiedNames = new Map();
  values.aliases.forEach(([alias, name]) => tiedNames.set(name, [...(tiedNames.get(name) || []), alias]));
  const node = (name, path) => ({ name, path, children: new Map(), tensors: [], bytes: 0, elements: 0, weights: 0, frozen: 0, tied: [], weightBytes: 0, frozenBytes: 0, tiedBytes: 0 });
  const root = node("the model", "");
  const counted = new Map();
  values.tensors.forEach((tensor, index) => {
    const isWeight = WEIGHTS.has(tensor[ROLE]);
    const elements = isWeight ? Math.max(0, tensor[ELEMENTS] - (counted.get(tensor[NAME]) || 0)) : 0;
    const isFirst = isWeight && !counted.has(tensor[NAME]), names = isWeight && tiedNames.get(tensor[NAME]);
    if (isWeight) counted.set(tensor[NAME], Math.max(tensor[ELEMENTS], counted.get(tensor[NAME]) || 0));
    let here = root;
    const add = () => {
      here.bytes += tensor[BYTES];
      here.elements += elements;
      if (isFirst) here.weights += 1;
      if (isFirst && frozen.has(index)) here.frozen += 1;
      if (isFirst && names) here.tied.push(...names);
      if (isWeight) here.weightBytes += tensor[BYTES];
      if (frozen.has(index)) here.frozenBytes += tensor[BYTES];
      if (names) here.tiedBytes += tensor[BYTES];
    };
    add();
    const parts = tensor[NAME].split(".");
    parts.forEach((part, depth) => {
      if (!here.children.has(part)) here.children.set(part, node(part, parts.slice(0, depth + 1).join(".")));
      here = here.children.get(part);
      add();
    });
    here.tensors.push(index);
  });
  // Numbered modules stand in the order of their numbers, and the others where the checkpoint has them.
  const isNumber = (part) => /^\d+$/.test(part);
  const sortNumbers = (at) => {
    const numbered = [...at.children].filter(([part]) => isNumber(part)).sort((a, b) => a[0] - b[0]);
    at.children = new Map([...at.children].map((each) => isNumber(each[0]) ? numbered.shift() : each));
    at.children.forEach(sortNumbers);
  };
  sortNumbers(root);
  const chain = (start) => {
    // The first node with several children.
    let at = start;
    while (at.children.size === 1 && !at.tensors.length) at = [...at.children.values()][0];
    return at;
  };
  const main = chain(root);
  // A kind of module: all layers and experts have one q_proj. It has one colour everywhere.
  const kinds = new Map();
  const kindOf = values.tensors.map((tensor) => {
    const kind = tensor[NAME].replace(/\.(weight|bias)$/, "").replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
    if (!kinds.has(kind)) kinds.set(kind, kinds.size);
    return kinds.get(kind);
  });
  const kindNames = [...kinds.keys()];

  // State: the open module, the selected module or tensor, and the text to find.
  let open = main;
  let selected = null;
  const expanded = new Set([root, main]);
  const measure = () => byId("measure").value;
  const nodeOf = (path) => path.split(".").reduce((at, part) => at && at.children.get(part), root);

  const colouring = () => byId("colour").value;
  const valueOf = (tensor, index) => {
    if (colouring() === "role") return tensor[ROLE];
    if (colouring() === "dtype") return tensor[DTYPE];
    if (colouring() === "group") return tensor[GROUP];
    if (byCheck()) return checks.tensors[index];
    return kindOf[index];
  };
  const wordsOf = (number) => {
    if (colouring() === "role") return values.roles[number];
    if (colouring() === "dtype") return values.dtypes[number];
    if (colouring() === "group") return number < 0 ? "in no group" : `group ${number}`;
    return byCheck() ? STATES[number] : kindNames[number];
  };
  const most = (at) => {
    // The value that most bytes below a node have; of states the worst.
    if (byCheck()) return below(at).reduce((worst, t) => Math.max(worst, checks.tensors[t]), 0);
    const sums = new Map();
    const walk = (here) => { here.tensors.forEach((t) => { const v = valueOf(values.tensors[t], t); sums.set(v, (sums.get(v) || 0) + values.tensors[t][BYTES]); }); here.children.forEach(walk); };
    walk(at);
    return [...sums].reduce((best, each) => each[1] > best[1] ? each : best, [-1, -1])[0];
  };

  // The marks of a tile have the rule of its colour: most bytes of its weights. Their words count the weights.
  const MARKS = ["frozen", "tied"];
  const isMostly = (at, mark) => at[`${mark}Bytes`] * 2 > at.weightBytes;
  const marksOf = (at) => [
    at.frozen && (at.frozen === at.weights ? "frozen" : `${count(at.frozen)} of ${count(at.weights)} weights frozen`),
    at.tied.length && (at.tied.length < 4 ? `tied to ${at.tied.join(", ")}` : `${count(at.tied.length)} tied names`),
  ].filter(Boolean);

  // Squarified treemap (Bruls, Huizing, van Wijk 2000): rows with tiles close to squares.
  const squarify = (items, box) => {
    const tiles = [];
    let { x, y, w, h } = box;
    const total = items.reduce((sum, item) => sum + item.value, 0);
    const scale = total ? w * h / total : 0;
    let rest = items.filter((item) => item.value > 0).map((item) => ({ ...item, area: item.value * scale }));
    const worst = (row, side) => {
      const sum = row.reduce((s, r) => s + r.area, 0);
      return Math.max(...row.map((r) => Math.max(side * side * r.area / (sum * sum), sum * sum / (side * side * r.area))));
    };
    while (rest.length) {
      const side = Math.min(w, h);
      let row = [rest[0]];
      let next = 1;
      while (next < rest.length && worst([...row, rest[next]], side) <= worst(row, side)) row.push(rest[next++]);
      const depth = row.reduce((s, r) => s + r.area, 0) / (side || 1);
      let along = 0;
      row.forEach((r) => {
        const length = depth ? r.area / depth : 0;
        tiles.push(w >= h ? { item: r, x, y: y + along, w: depth, h: length } : { item: r, x: x + along, y, w: length, h: depth });
        along += length;
      });
      if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
      rest = rest.slice(next);
    }
    return tiles;
  };

  // The name of a tile: the last parts of its path. Tiles with the same name get a longer one, which has the number of the layer.
  const LETTER = 7;
  const forms = [
    ({ stem, width }) => { const both = stem.slice(-2).join("."); return both.length * LETTER > width - 10 ? stem.at(-1) : both; },
    ({ numbers, stem }) => [...numbers, stem.at(-1)].join("."),
    ({ numbers, stem, parts }) => [...numbers, ...parts.slice(stem.length - 1)].join("."),
    ({ parts }) => parts.join("."),
  ];
  const tileNames = (tiles) => {
    const split = tiles.map(({ path, width }) => {
      const parts = path.split(".");
      const stem = parts.length > 1 && /^(weight|bias)$/.test(parts.at(-1)) ? parts.slice(0, -1) : parts;
      return { parts, stem, numbers: stem.slice(0, -1).filter(isNumber), width };
    });
    let names = split.map(() => "");
    forms.forEach((form) => {
      const counts = new Map();
      names.forEach((name) => counts.set(name, (counts.get(name) || 0) + 1));
      names = names.map((name, n) => name && counts.get(name) === 1 ? name : form(split[n]));
    });
    return names;
  };
  // The map is one stop of the key Tab. Arrow keys lead to the nearest tile in their direction.
  const focusTile = (tile) => { byId("map").querySelectorAll("button").forEach((each) => { each.tabIndex = each === tile ? 0 : -1; }); if (tile) tile.focus(); };
  byId("map").addEventListener("keydown", (event) => {
    const to = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!to) return;
    const middle = (tile) => [tile.offsetLeft + tile.offsetWidth / 2, tile.offsetTop + tile.offsetHeight / 2];
    const [x, y] = middle(event.target);
    const away = (tile) => { const [dx, dy] = [middle(tile)[0] - x, middle(tile)[1] - y]; const along = dx * to[0] + dy * to[1]; return along > 0 ? along + 3 * Math.abs(dx * to[1] + dy * to[0]) : Infinity; };
    const nearest = [...byId("map").querySelectorAll("button")].map((tile) => [away(tile), tile]).reduce((best, each) => each[0] < best[0] ? each : best, [Infinity]);
    if (nearest[1]) focusTile(nearest[1]);
    event.preventDefault();
  });
  const drawMap = () => {
    const map = byId("map"), hadFocus = map.contains(document.activeElement);
    map.replaceChildren();
    const width = map.clientWidth, height = map.clientHeight, named = [];
    const place = (at, box, depth) => {
      const items = [...at.children.values()].map((child) => ({ child, value: child[measure()] })).sort((a, b) => b.value - a.value);
      const rest = items.splice(MOST_TILES).reduce((sum, { value }) => sum + value, 0);
      if (rest) items.push({ value: rest });
      squarify(items, box).forEach((tile) => {
        const child = tile.item.child;
        if (!child) { map.append(Object.assign(make("p", `${count(at.children.size - MOST_TILES)} smaller ones`), { style: `left:${tile.x}px;top:${tile.y}px;width:${tile.w}px;height:${tile.h}px` })); return; }
        // A module is split if its parts are large enough to be seen, which layers of one size share.
        const area = tile.w * tile.h, splits = child.children.size && depth < 5 && area > 6000 && area > LEAST_TILE * child.children.size;
        if (splits) { place(child, tile, depth + 1); return; }
        const button = make("button");
        const colour = colourOf(most(child));
        button.classList.toggle("plain", colour === "var(--none)");
        MARKS.forEach((mark) => button.classList.toggle(mark, !byCheck() && isMostly(child, mark)));
        Object.assign(button.style, { left: `${tile.x}px`, top: `${tile.y}px`, width: `${tile.w}px`, height: `${tile.h}px`, background: colour });
        if (tile.w > 34 && tile.h > 15) named.push({ button, path: child.path.slice(open.path ? open.path.length + 1 : 0), width: tile.w });
        button.dataset.path = child.path;
        button.setAttribute("aria-label", [child.path, size(child.bytes), `${count(child.elements)} parameters`, ...marksOf(child)].join(", "));
        button.setAttribute("aria-pressed", String(selected === child));
        button.tabIndex = -1;
        button.addEventListener("click", () => choose(child, true));
        map.append(button);
      });
    };
    if (width && height) place(open, { x: 0, y: 0, w: width, h: height }, 0);
    tileNames(named).forEach((name, n) => { named[n].button.append(make("span", name)); });
    const stop = map.querySelector('[aria-pressed="true"]') || map.querySelector("button");
    if (hadFocus) focusTile(stop); else if (stop) stop.tabIndex = 0;
    drawPath();
    drawLegend();
  };
  const drawPath = () => {
    const parts = open.path ? open.path.split(".") : [];
    const nav = byId("path"), hadFocus = nav.contains(document.activeElement);
    nav.replaceChildren();
    [["", "the model"], ...parts.map((part, depth) => [parts.slice(0, depth + 1).join("."), part])].forEach(([path, text], depth) => {
      if (depth) nav.append(" . ");
      const button = make("button", text);
      button.addEventListener("click", () => { open = path ? nodeOf(path) : root; drawMap(); });
      nav.append(button);
    });
    if (hadFocus) nav.lastChild.focus();
    nav.append(make("span", `  ${size(open.bytes)}, ${count(open.elements)} parameters`, "muted"));
  };
  const drawLegend = () => {
    const legend = byId("legend");
    legend.replaceChildren();
    const sums = new Map();
    values.tensors.forEach((tensor, index) => { const v = valueOf(tensor, index); sums.set(v, (sums.get(v) || 0) + tensor[BYTES]); });
    [...sums].sort((a, b) => b[1] - a[1]).slice(0, 14).forEach(([number, bytes]) => {
      const item = make("li");
      const swatch = make("span");
      swatch.style.background = colourOf(number);
      item.append(swatch, `${wordsOf(number) || "other"}: ${size(bytes)}`);
      legend.append(item);
    });
    const mark = (name, words) => { const item = make("li"); item.append(make("span", undefined, `mark ${name}`), words); legend.append(item); };
    if (root.frozen && !byCheck()) mark("frozen", `striped: frozen, ${count(root.frozen)} of ${count(root.weights)} weights`);
    if (root.tied.length && !byCheck()) mark("tied", `dotted: tied, ${count(root.tied.length)} more ${root.tied.length === 1 ? "name" : "names"} for the same bytes`);
  };

  // The tree
  const matches = new Set();
  const search = () => {
    matches.clear();
    const text = byId("find").value.toLowerCase();
    if (!text) return;
    values.tensors.forEach((tensor) => {
      if (![tensor[NAME], ...(tiedNames.get(tensor[NAME]) || [])].some((name) => name.toLowerCase().includes(text))) return;
      let here = root;
      matches.add(here);
      tensor[NAME].split(".").forEach((part) => { here = here.children.get(part); matches.add(here); });
    });
  };
  const rows = () => {
    const found = [];
    const walk = (at, depth) => {
      found.push([at, depth]);
      if (!(expanded.has(at) || (matches.size && matches.size < 3000))) return;
      [...at.children.values()].forEach((child) => { if (!matches.size || matches.has(child)) walk(child, depth + 1); });
    };
    walk(root, 0);
    return found;
  };
  const drawTree = (focus) => {
    const tree = byId("tree");
    tree.replaceChildren();
    const searched = byId("find").value && !matches.size;
    if (searched) { tree.append(make("p", "no tensor has this in its name", "muted")); return; }
    const found = rows(), shown = found.slice(0, MOST_ROWS);
    const at = shown.some(([each]) => each === selected) ? selected : root;
    shown.forEach(([each, depth]) => {
      const row = make("div");
      row.setAttribute("role", "treeitem");
      row.setAttribute("aria-level", String(depth + 1));
      row.setAttribute("aria-selected", String(each === selected));
      if (each.children.size) row.setAttribute("aria-expanded", String(expanded.has(each) || matches.size > 0));
      row.tabIndex = each === at ? 0 : -1;
      row.style.paddingLeft = `${8 + depth * 14}px`;
      row.append(make("span", `${each.children.size ? (expanded.has(each) || matches.size ? "▾ " : "▸ ") : ""}${each.name}`, "name"), ...MARKS.filter((mark) => each.weightBytes && each[`${mark}Bytes`] === each.weightBytes).map((mark) => make("span", mark, "muted")), make("span", measure() === "bytes" ? size(each.bytes) : count(each.elements), "number"));
      row.addEventListener("click", () => { if (each.children.size && (each === selected || !expanded.has(each))) toggle(each); choose(each); });
      row.addEventListener("keydown", (event) => onKey(event, each, shown));
      tree.append(row);
      if (focus && each === at) row.focus();
    });
    if (found.length > shown.length) tree.append(make("p", `and ${count(found.length - shown.length)} more; find a longer part of a name`, "muted"));
  };
  const toggle = (at) => { if (expanded.has(at)) expanded.delete(at); else expanded.add(at); };
  const onKey = (event, at, shown) => {
    const place = shown.findIndex(([each]) => each === at);
    const to = (index) => { if (shown[index]) choose(shown[index][0], false, true); };
    if (event.key === "ArrowDown") to(place + 1);
    else if (event.key === "ArrowUp") to(place - 1);
    else if (event.key === "Home") to(0);
    else if (event.key === "End") to(shown.length - 1);
    else if (event.key === "ArrowRight" && at.children.size && !expanded.has(at)) { expanded.add(at); choose(at, false, true); }
    else if (event.key === "ArrowRight") to(place + 1);
    else if (event.key === "ArrowLeft" && expanded.has(at) && at.children.size) { expanded.delete(at); choose(at, false, true); }
    else if (event.key === "ArrowLeft") { const depth = shown[place][1]; for (let i = place; i >= 0; i--) if (shown[i][1] < depth) { to(i); break; } }
    else if (event.key === "Enter" || event.key === " ") { if (at.children.size) { toggle(at); choose(at, true, true); } }
    else return;
    event.preventDefault();
  };

  // The selection
  const choose = (at, opens, focus) => {
    selected = at;
    if (opens && at.children.size) open = at;
    let here = root;
    at.path.split(".").slice(0, -1).forEach((part) => { here = here.children.get(part); if (here) expanded.add(here); });
    drawTree(focus);
    drawMap();
    drawDetail();
    drawFiles();
  };
  const spansIn = (tensors) => {
    const held = new Set();
    tensors.forEach((t) => values.tensors[t][FILES].forEach(([first, last]) => { for (let f = first; f <= last; f++) held.add(f); }));
    return held;
  };
  const below = (at) => { const found = []; const walk = (here) => { found.push(...here.tensors); here.children.forEach(walk); }; walk(at); return found; };
  const drawDetail = () => {
    const detail = byId("detail");
    detail.replaceChildren();
    if (!selected) { detail.append(make("p", "Choose a module or a tensor: its shapes, types and files stand here.", "muted")); return; }
    const tensors = below(selected);
    detail.append(make("h2", selected.path || selected.name));
    const held = spansIn(tensors);
    detail.append(make("p", `${size(selected.bytes)}, ${count(selected.elements)} parameters, ${count(tensors.length)} ${tensors.length === 1 ? "tensor" : "tensors"} in ${count(held.size)} of ${count(values.files.length)} files`));
    const table = make("table", undefined, "figures");
    const head = make("tr");
    ["tensor", "role", "type", "shape", "size", ...(checks ? ["check"] : []), ...(statistics ? ["min", "max", "mean", "norm", "zeros", "NaN/Inf"] : [])].forEach((text, n) => head.append(make("th", text, n > 3 ? "number" : "")));
    table.createTHead().append(head);
    const body = table.createTBody();
    tensors.slice(0, 60).forEach((index) => {
      const tensor = values.tensors[index];
      const row = make("tr");
      const name = selected.path ? tensor[NAME].slice(selected.path.length + 1) || tensor[NAME] : tensor[NAME];
      row.append(make("td", name), make("td", `${values.roles[tensor[ROLE]]}${frozen.has(index) ? ", frozen" : ""}`), make("td", values.dtypes[tensor[DTYPE]]), make("td", tensor[SHAPE].join(" x ") || "scalar"), make("td", `${size(tensor[BYTES])}${tensor[WHOLE] ? "" : ", incomplete"}`, "number"));
      if (checks) row.append(make("td", STATES[checks.tensors[index]], checks.tensors[index] === 2 ? "problem" : ""));
      if (statistics) row.append(...figuresOf(index).map((text) => make("td", text, "number")));
      body.append(row);
    });
    nameCells(table);
    const scroll = make("div", undefined, "scroll");
    Object.entries({ role: "region", tabindex: "0", "aria-label": "table of the chosen tensors" }).forEach(([name, value]) => scroll.setAttribute(name, value));
    scroll.append(table);
    detail.append(scroll);
    if (statistics) drawValuesOf(detail, tensors);
    if (tensors.length > 60) detail.append(make("p", `and ${count(tensors.length - 60)} more`, "muted"));
    const tied = values.aliases.filter(([alias, name]) => tensors.some((t) => values.tensors[t][NAME] === name) || alias.startsWith(selected.path));
    tied.slice(0, 6).forEach(([alias, name]) => detail.append(make("p", `tied: ${alias} = ${name}`, "muted")));
    const groups = new Set(tensors.map((t) => values.tensors[t][GROUP]).filter((g) => g >= 0));
    if (groups.size) detail.append(make("p", `param ${groups.size === 1 ? "group" : "groups"} ${[...groups].join(", ")}`, "muted"));
    else if (values.groups.length && tensors.some((t) => WEIGHTS.has(values.tensors[t][ROLE]))) detail.append(make("p", values.frozen ? "in no param group" : "in no param group: frozen, or not named by the optimizer", "muted"));
  };

  // The statistics: [min, max, mean, norm, zeros, NaN, infinite, layer, kind, first, negative, positive] of a tensor
  const statistics = values.statistics;
  const [MIN, MAX, MEAN, NORM, ZEROS, NANS, INFINITE, LAYER, KIND, FIRST, NEGATIVE, POSITIVE] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
  const outliers = new Map(statistics ? statistics.outliers : []);
  const figuresOf = (index) => {
    const found = statistics.tensors[index];
    if (!found) return ["not read", "", "", "", "", ""];
    return [MIN, MAX, MEAN, NORM].map((at) => figure(found[at])).concat([count(found[ZEROS]), count(found[NANS] + found[INFINITE])]);
  };
  const rms = (index) => {
    const found = statistics.tensors[index];
    return found[NORM] === null ? null : found[NORM] / Math.sqrt(Math.max(1, values.tensors[index][ELEMENTS] - found[NANS] - found[INFINITE]));
  };
  const drawValuesOf = (host, tensors) => {
    const said = [...outliers].filter(([index]) => tensors.includes(index));
    said.slice(0, 6).forEach(([index, why]) => host.append(make("p", `outlier: ${values.tensors[index][NAME]} (${values.roles[values.tensors[index][ROLE]]}): ${why}`, "problem")));
    tensors.filter((index) => statistics.stored_as[index]).slice(0, 4).forEach((index) => host.append(make("p", `${values.tensors[index][NAME]} holds ${statistics.stored_as[index]}: its figures are not those of the weight`, "muted")));
    const shown = tensors.filter((index) => statistics.tensors[index] && statistics.tensors[index][MIN] !== null && values.tensors[index][ELEMENTS] > 1);
    if (shown.length > 6) return;
    const figures = make("div", undefined, "histograms");
    shown.forEach((index) => {
      const found = statistics.tensors[index], tensor = values.tensors[index];
      const name = tensor[NAME].slice(selected.path.length + 1);
      drawHistogram(figures, `${name ? `${name}, ` : ""}${values.roles[tensor[ROLE]]}`, found[FIRST], found[NEGATIVE], found[POSITIVE], found[ZEROS]);
    });
    if (shown.length) host.append(make("p", "Each bar counts the values from one power of two to the next, so the axis is not linear. Zeros have a bar of their own.", "muted"));
    host.append(figures);
  };
  const shortLayers = statistics ? statistics.layers.map((layer) => layer.split(".").pop()) : [];
  // Codes and scales of quantised weights are in no chart: their figures are not those of weights.
  const isDrawn = (index) => statistics.tensors[index] && !(index in statistics.stored_as);
  const rolesDrawn = () => {
    // Roles of weights and moments, in the order of the checkpoint; numbers such as `step` have no layers to compare.
    const sizes = new Map();
    values.tensors.forEach((tensor, index) => { if (isDrawn(index)) sizes.set(tensor[ROLE], Math.max(sizes.get(tensor[ROLE]) || 0, tensor[ELEMENTS])); });
    return [...sizes].filter(([, elements]) => elements > 1).map(([role]) => role);
  };
  const drawStatistics = () => {
    const roles = rolesDrawn();
    const ofRms = byId("value").value === "rms";
    const host = byId("norms");
    host.replaceChildren(...roles.map(() => make("div")));
    roles.forEach((role, place) => {
      const sums = new Map();
      values.tensors.forEach((tensor, index) => {
        const found = statistics.tensors[index];
        if (tensor[ROLE] !== role || !isDrawn(index)) return;
        const sum = sums.get(found[LAYER]) || [0, 0, false];
        sums.set(found[LAYER], [sum[0] + (found[NORM] === null ? NaN : found[NORM] ** 2), sum[1] + tensor[ELEMENTS] - found[NANS] - found[INFINITE], sum[2] || outliers.has(index)]);
      });
      const points = [...sums].sort((a, b) => a[0] - b[0]).map(([layer, [squares, elements, isMarked]]) => [layer, Math.sqrt(ofRms ? squares / Math.max(1, elements) : squares), isMarked]);
      drawLines(host.children[place], {
        title: `${values.roles[role]}: ${ofRms ? "root mean square" : "norm"} by layer`,
        series: [{ name: ofRms ? "root mean square" : "norm", colour: "var(--focus)", points }],
        isLog: true,
        empty: "every value is 0 or not a number",
        labelOf: (layer) => shortLayers[layer],
        nameOf: (layer) => statistics.layers[layer],
        pick: (layer) => choose(nodeOf(statistics.layers[layer]) || root, true),
      });
    });
    const role = Number(byId("map-role").value);
    const cells = new Map();
    values.tensors.forEach((tensor, index) => {
      const found = statistics.tensors[index];
      if (tensor[ROLE] !== role || !isDrawn(index) || tensor[ELEMENTS] < 2) return;
      const key = `${found[KIND]} ${found[LAYER]}`;
      cells.set(key, [...(cells.get(key) || []), index]);
    });
    const kinds = [...new Set([...cells.keys()].map((key) => Number(key.split(" ")[0])))];
    const isNumbered = (layer) => /(^|\.)\d+$/.test(statistics.layers[layer]);
    const layersOf = (kind) => statistics.layers.map((_, layer) => isNumbered(layer) ? cells.get(`${kind} ${layer}`) : null).filter(Boolean);
    const repeated = kinds.filter((kind) => layersOf(kind).length > 1);
    const shown = statistics.layers.map((_, layer) => layer).filter((layer) => isNumbered(layer) && repeated.some((kind) => cells.has(`${kind} ${layer}`)));
    const sizeOf = (indexes) => Math.max(...indexes.map(rms));
    const usual = new Map(repeated.map((kind) => { const all = layersOf(kind).map(sizeOf).sort((a, b) => a - b); return [kind, all[Math.floor(all.length / 2)]]; }));
    const at = (r, c) => cells.get(`${repeated[r]} ${shown[c]}`);
    const heat = byId("heat");
    byId("heat-note").textContent = repeated.length ? "Each cell is a tensor: its root mean square, compared with the median of its row. A ring marks an outlier." : "No module occurs in several layers, so there is no map of layers.";
    if (Object.keys(statistics.stored_as).length) byId("heat-note").textContent += " Codes and scales of quantised weights are left out.";
    heat.hidden = !repeated.length;
    if (!repeated.length) return;
    drawCells(heat, {
      name: `root mean square of ${values.roles[role]} by kind and layer`,
      rows: repeated.map((kind) => statistics.kinds[kind].replace(/\.weight$/, "")),
      columns: shown.map((layer) => shortLayers[layer]),
      colourOf: (r, c) => { const found = at(r, c); if (!found) return null; const value = sizeOf(found); return value > 0 && usual.get(repeated[r]) > 0 ? mixed(Math.log2(value / usual.get(repeated[r])) / 2) : "var(--none)"; },
      isMarked: (r, c) => (at(r, c) || []).some((index) => outliers.has(index)),
      wordsOf: (r, c) => {
        const found = at(r, c);
        if (!found) return "no such tensor";
        const value = sizeOf(found), median = usual.get(repeated[r]), name = `${statistics.layers[shown[c]]}.${statistics.kinds[repeated[r]]}`;
        if (found.every((index) => statistics.tensors[index][MIN] === null)) return `${name}: no finite value`;
        return `${name}: ${figure(value)}${median ? `, ${figure(value / median)} times the median` : ""}${found.length > 1 ? ` (largest of ${found.length})` : ""}`;
      },
      pick: (r, c) => { const found = at(r, c); if (found) choose(nodeOf(values.tensors[found[0]][NAME])); },
    });
    drawScale(heat, ["1/4 of the median", "4 times"], [-1, 0, 1]);
  };
  const makeStatistics = () => {
    if (!statistics) return;
    byId("statistics-section").hidden = false;
    document.querySelector(".columns").classList.add("stacked");
    rolesDrawn().forEach((role) => { const option = make("option", values.roles[role]); option.value = String(role); byId("map-role").append(option); });
    byId("map-role").parentElement.hidden = byId("map-role").options.length < 2;
    byId("value").addEventListener("change", drawStatistics);
    byId("map-role").addEventListener("change", drawStatistics);
    const list = byId("outliers");
    byId("outliers-title").textContent = outliers.size ? `${count(outliers.size)} ${outliers.size === 1 ? "outlier" : "outliers"}` : "No outliers";
    [...outliers].slice(0, 50).forEach(([index, why]) => {
      const item = make("li");
      const button = make("button", `${values.tensors[index][NAME]} (${values.roles[values.tensors[index][ROLE]]}):`, "link");
      button.addEventListener("click", () => choose(nodeOf(values.tensors[index][NAME])));
      item.append(button, ` ${why}`);
      list.append(item);
    });
    if (outliers.size > 50) list.append(make("li", `and ${count(outliers.size - 50)} more`));
    drawings.push(drawStatistics);
    drawStatistics();
  };

  // The loss of the run
  const drawCurves = () => {
    const curves = values.curves;
    const losses = [["loss", "var(--focus)"], ["eval_loss", "var(--warm)"]].filter(([name]) => curves[name].length);
    const charts = [
      { title: "loss by step", series: losses.map(([name, colour]) => ({ name, colour, points: curves[name] })) },
      { title: "learning rate by step", series: [{ name: "learning rate", colour: "var(--focus)", points: curves.lr }] },
    ].filter((chart) => chart.series.some((each) => each.points.length));
    byId("curves").replaceChildren(...charts.map(() => make("div")));
    charts.forEach((chart, place) => drawLines(byId("curves").children[place], { ...chart, at: curves.step }));
  };
  const makeCurves = () => {
    if (!values.curves) return;
    byId("curves-section").hidden = false;
    if (values.curves.fault) { byId("curves-note").textContent = `${values.curves.source} cannot be read: ${values.curves.fault}`; return; }
    byId("curves-note").textContent = `From ${values.curves.source}.${values.curves.averaged > 1 ? ` Each point is the mean of ${count(values.curves.averaged)} values.` : ""}${values.curves.step === null ? "" : ` The dashed line is this checkpoint, step ${count(values.curves.step)}.`}`;
    drawings.push(drawCurves);
    drawCurves();
  };

  // The strips of the files
  const drawn = new Map();
  const paint = (canvas) => {
    const strip = byCheck() ? checks.files[Number(canvas.dataset.file)][2] : values.files[Number(canvas.dataset.file)][2];
    const cells = strip.reduce((sum, value, place) => place % 2 ? sum : sum + value, 0);
    canvas.width = cells;
    canvas.height = 1;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const none = style.getPropertyValue("--none");
    const chosen = selected && selected !== root ? new Set(below(selected)) : null;
    const probe = paint.probe || (paint.probe = document.body.appendChild(make("i")));
    const resolve = (value) => { if (!drawn.has(value)) { probe.style.color = value; drawn.set(value, getComputedStyle(probe).color); } return drawn.get(value); };
    let at = 0;
    for (let place = 0; place < strip.length; place += 2) {
      const tensor = strip[place + 1];
      context.globalAlpha = chosen && !byCheck() && !chosen.has(tensor) ? 0.15 : 1;
      context.fillStyle = byCheck() ? resolve(colourOf(tensor)) : tensor < 0 ? resolve(none) : resolve(colourOf(valueOf(values.tensors[tensor], tensor)));
      context.fillRect(at, 0, strip[place], 1);
      at += strip[place];
    }
  };
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => { entry.target.dataset.seen = entry.isIntersecting ? "1" : ""; if (entry.isIntersecting) paint(entry.target); }));
  // A strip is read tensor by tensor, and the keys up and down lead to the strips of the other files.
  const makeStripReadable = (canvas, index) => {
    const [name, , strip] = values.files[index];
    const state = checks ? `${STATES[checks.files[index][0]]}${checks.files[index][1] ? ` (${checks.files[index][1]})` : ""}; ` : "";
    const ends = [], tensors = [];
    for (let place = 0; place < strip.length; place += 2) { ends.push((ends.at(-1) || 0) + strip[place]); tensors.push(strip[place + 1]); }
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${checks ? `${name} is ${STATES[checks.files[index][0]]}` : `tensors in ${name}`}; arrow keys read them`);
    canvas.tabIndex = index === firstStrip ? 0 : -1;
    makeReadable(canvas, {
      none: -1,
      placeAt: (event) => within(ends.findIndex((end) => event.offsetX / canvas.clientWidth * ends.at(-1) < end), ends.length),
      moved: movedAlong(ends.length),
      show: (place, x, y) => {
        const tensor = tensors[place], box = canvas.getBoundingClientRect();
        const middle = (ends[place] + (ends[place - 1] || 0)) / 2 / ends.at(-1);
        showTip(state + (tensor < 0 ? "headers and padding" : `${values.tensors[tensor][NAME]} (${values.roles[values.tensors[tensor][ROLE]]}), ${size(values.tensors[tensor][BYTES])} in all`), x ?? box.left + middle * box.width, y ?? box.top);
      },
      pick: (place) => { if (tensors[place] >= 0) choose(nodeOf(values.tensors[tensors[place]][NAME])); },
    });
  };
  const firstStrip = values.files.findIndex((file) => file[2]);
  const makeFiles = () => {
    if (!checks) byId("colour").querySelector('[value="check"]').remove();
    else byId("colour").value = "check";
    const body = byId("files").tBodies[0];
    values.files.forEach(([name, bytes, strip, isNamed], index) => {
      const row = make("tr", undefined, isNamed ? "named" : "");
      const cell = make("td", `‎${name}`);
      cell.title = checks && checks.files[index][1] ? `${name}: ${checks.files[index][1]}` : name;
      if (checks) cell.prepend(make("span", ["✓ ", "? ", "✗ "][checks.files[index][0]], ["good", "doubt", "problem"][checks.files[index][0]]));
      const picture = make("td");
      if (strip) {
        const canvas = make("canvas");
        canvas.dataset.file = String(index);
        makeStripReadable(canvas, index);
        picture.append(canvas);
        if (values.files.length <= 64) canvas.dataset.seen = "1"; else seen.observe(canvas);
      } else {
        const lost = make("div", undefined, "lost");
        lost.setAttribute("role", "img");
        lost.setAttribute("aria-label", `${name} is missing`);
        picture.append(lost);
      }
      row.classList.toggle("apart", index in values.apart);
      if (index in values.apart) picture.append(make("div", values.apart[index], "doubt"));
      row.append(cell, make("td", strip ? size(bytes) : "missing", "number"), picture);
      body.append(row);
    });
  };
  byId("files").addEventListener("keydown", (event) => {
    const strips = [...byId("files").querySelectorAll("canvas")], from = strips.indexOf(event.target);
    const to = strips[from + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] || NaN)];
    if (!to) return;
    event.target.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
    event.preventDefault();
  });
  const drawFiles = () => {
    const held = selected && selected !== root ? spansIn(below(selected)) : null;
    [...byId("files").tBodies[0].rows].forEach((row, index) => row.classList.toggle("away", Boolean(held) && !held.has(index)));
    document.querySelectorAll("#files canvas").forEach((canvas) => { if (canvas.dataset.seen) paint(canvas); });
    const gone = values.files.filter((file) => !file[2]).length;
    byId("files-note").textContent = `${count(values.files.length)} ${values.files.length === 1 ? "file" : "files"}${gone ? `, ${count(gone)} of them missing` : ""}. Each strip is a file, from its first byte to its last; ${byCheck() ? "red is damaged, and a ? means that nothing in the file proves its bytes" : "the colours are those of the map, and grey is headers and padding"}.${held ? ` ${selected.path} lies in ${count(held.size)} of them.` : ""}`;
  };

  // The optimizer
  const rounded = (value) => typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value;
  const optionText = (value) => typeof value === "object" && value !== null ? JSON.stringify(value, (_, each) => rounded(each)) : String(rounded(value));
  const makeGroups = () => {
    if (!values.groups.length) return;
    byId("groups-section").hidden = false;
    const keys = [...new Set(values.groups.flatMap((group) => Object.keys(group.options)))];
    const head = make("tr");
    ["group", "tensors", ...keys].forEach((text) => head.append(make("th", text)));
    byId("groups").tHead.append(head);
    values.groups.forEach((group, number) => {
      const row = make("tr");
      row.append(make("td", String(number)), make("td", count(group.tensors)));
      keys.forEach((key) => row.append(make("td", key in group.options ? optionText(group.options[key]) : "")));
      byId("groups").tBodies[0].append(row);
    });
    nameCells(byId("groups"));
  };

  const redraw = () => { drawn.clear(); drawTree(); drawMap(); drawFiles(); };
  byId("measure").addEventListener("change", redraw);
  byId("colour").addEventListener("change", redraw);
  byId("find").addEventListener("input", () => { search(); drawTree(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  drawings.push(drawMap);
  addEventListener("beforeprint", () => document.querySelectorAll("#files canvas").forEach(paint));
  if (!values.groups.length) byId("colour").querySelector('[value="group"]').remove();
  makeFiles();
  makeGroups();
  makeStatistics();
  makeCurves();
  redraw();
  drawDetail();
})();
