// What the page's modules without a page compute, for a test to compare.
async () => {
  const format = await import('/page/js/main.js');
  const states = await import('/page/js/main.js');
  const data = await import('/page/js/views.js');
  const events = await import('/page/js/main.js');
  const hex = await import('/page/js/main.js');
  const checkpoints = await import('/page/js/views.js');
  const ticks = await import('/page/js/views.js');
  const use = await import('/page/js/views.js');
  const heat = await import('/page/js/views.js');
  const keys = await import('/page/js/views.js');
  const forms = await import('/page/js/main.js');
  const noon = new Date(2026, 2, 3, 12, 7, 40).getTime() / 1000;
  const hours = (times) => times.map((time) => new Date(time * 1000)).map((date) => [date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()]);
  return {
    tokens: [
      [{ spec: { train: { batch_size: 8 }, data: { sequence_length: 100 } } }, { step: [] }],
      [null, { step: [1, 2, 4, 5], time: [0, 1, 3, 9], tokens_per_second: [50, 50, 50, 50] }],
      [null, { step: [1, 2] }],
    ].map(([job, steps]) => data.tokensPerStep(job, steps)),
    differences: keys.differences([
      { spec: { name: 'a', seed: 1, train: { steps: 3, eps: 1 }, model: { config: { layers: 2 } } }, set_keys: ['name', 'seed', 'train.steps', 'model.config.layers'] },
      { spec: { name: 'b', seed: 1, train: { steps: 4, eps: 2 }, model: { path: '/m' } }, set_keys: ['model.path'] },
    ]),
    set_keys: keys.setKeys({ spec: { seed: 1, env: { A: '?' }, gpus: 2, train: { steps: 3, lr: 1 }, model: { config: { layers: 2 } } }, set_keys: ['env.A', 'gpus', 'train.steps', 'model.config.layers'] }),
    changes: keys.changesOf({ gpus: 2, train: { steps: 3, lr: 1 } }, { train: { steps: 4, lr: 1 }, model: { config: { layers: 2 } } }),
    after: forms.parseAfter('3, #4:any'),
    ticks: [[600, 4], [3600, 4], [86400, 5], [7 * 86400, 4]].map(([span, most]) => hours(ticks.timeTicks(noon, noon + span, most))),
    days: hours(use.daysOf(noon, noon + 86400)),
    hours: use.gpuHours({ times: [0, 3600, 7200, 10800], step_seconds: 3600, series: { 'job.1.gpu.a.memory_used_bytes': { mean: [null, 5, 5, 5] }, 'job.2.gpu.a.memory_used_bytes': { mean: [5, null, null, null] }, 'job.2.gpu.b.memory_used_bytes': { mean: [5, 5, 5, 5] }, 'job.3.host_memory_bytes': { mean: [5, 5, 5, 5] } } }, new Map([[1, 7]]), [0, 7200]),
    shades: [-1, 0, 0.25, 0.5, 1, 2].map((part) => heat.shade(['#000000', '#0064c8', '#ffffff'], part)),
    words: Object.fromEntries(states.STATES.map((state) => [state, format.stateWords(state)[0]])),
    states: { all: states.STATES, over: [...format.OVER], runs: [...format.RUNS], open: format.OPEN },
    shown: [['stalled', 720], ['late', 65], ['saving', 7], ['running', 90], ['held', 90], ['waiting_retry', null]].map(([state_word, seconds]) => format.stateOf({ state_word, state_since: seconds && format.now() - seconds })),
    speeds: [{}, { step_is_old: true }, { stalled: true }, { quiet: true }].map((phase) => format.hasSpeed({ state: 'running', phase, progress: { tokens_per_second: 5 } })),
    bytes: [0, 1023, 1536, 2 ** 40, null, NaN].map(format.bytes),
    duration: [0, 59.6, 61, 3700, 90000, -1, null].map(format.duration),
    measure: [0, 1, 0.00001, 123456, -2.5, NaN].map(format.measure),
    quoted: ['/a/b-1.x', "it's", 'a b', '$(x)', '', "/a\u001b[201~'\n\u202e\\b"].map(format.quoted),
    lines: ['10%\r20%\r\n'.trimEnd(), '\u001b[1;31mx\u001b[0m', '\u001b]0;title\u0007y', 'a\u0000b\tc'].map(format.plainLine),
    passing: ['', 'lora', '-lora', 'LORA -bob', 'failed|bob', '^\\d+ LORA-\\d', '-', 'c++', 'lora('].map((filter) => ['3 c++ anna failed', '4 lora anna running', '5 lora-2 bob queued'].filter(format.passing(filter)).map((text) => Number(text[0]))),
    smoothed: data.smoothed([2, 4, null, 8], 0.5),
    joined: data.joined([{x: [null, 1, 3], y: [7, 1, 3]}, {x: [2, 3], y: [20, 30]}]),
    stacked: data.stacked([[1, null, 3], [10, 20, null]]),
    owners: data.byOwner({all: {mean: [10, 20]}, 'job.3': {mean: [4, 25]}, 'job.1': {mean: [0, 0]}}, 'all', (name) => (name.startsWith('job.') ? Number(name.slice(4)) : null)),
    gaps: data.withGaps({times: [0, 60, 120, 300, 360], step_seconds: 60, series: {a: {mean: [1, null, 3, 4, 5]}}}),
    events: events.parseEvents(': hi\n\nid: 7\nevent: x\ndata: {"a":1}\n\nid: 8\nda'),
    trimmed: [[{ min: 1, max: 101 }], [{ min: 51, max: 100 }], [{ min: 200, max: 300 }]].map(([shown]) => ticks.trimmed([{ x: Array.from({ length: 101 }, (_, index) => index + 1), y: Array.from({ length: 101 }, (_, index) => (index === 100 ? 1e6 : index === 3 ? null : index)) }], shown)),
    hex: [hex.hexOfBytes(new Uint8Array([0, 255])), [...hex.bytesOfHex('00ff')], [...hex.bytesOfHex('zz')]],
    commands: checkpoints.commandsOf("/r/it's", 4).map(([, line]) => line),
  };
}
