//! Templates that try to hang the process, fill its memory or overflow its stack. They come with
//! a model file, so they are anyone's. What the engine cannot stop is listed in `src/jinja.rs`.

use std::time::{Duration, Instant};

use shamrock_text::{ChatTemplate, Error, Message, RenderOptions};

fn run(source: &str) -> Result<String, Error> {
    ChatTemplate::new(source, [])?.render(&[Message::new("user", "hello")], &RenderOptions::default())
}

/// Memory the process has used at most, in MiB.
#[cfg(target_os = "linux")]
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

const SPIN: &str = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}";

/// One test, so that the peak is that of these templates.
#[test]
fn hostile_templates_fail_fast() {
    let nested = |open: &str, middle: &str, close: &str, depth: usize| {
        open.repeat(depth) + middle + &close.repeat(depth)
    };
    let grow = |step: &str| {
        format!("{{% set n = namespace(x='ab', l=[1]) %}}{{% for i in range(9000) %}}{step}{{% endfor %}}")
    };
    let failing = [
        "{% for i in range(10**9) %}{% endfor %}".to_owned(),
        format!("{SPIN}{{% endfor %}}{{% endfor %}}{{% endfor %}}"),
        format!("{SPIN}x{{% endfor %}}{{% endfor %}}{{% endfor %}}"),
        "{{ 'a' * 1000000000 }}".to_owned(),
        "{{ ('a' * 90000000) | length }}{{ ('a' * 90000000) | length }}".to_owned(),
        "{{ [0] * 1000000000 }}".to_owned(),
        grow("{% set n.x = n.x ~ n.x %}"),
        grow("{% set n.x = n.x + n.x %}"),
        grow("{% set n.x = n.x.replace('a', n.x) %}"),
        grow("{% set n.x = n.x | replace('a', n.x) %}"),
        grow("{% set n.x = [n.x, n.x] | join %}"),
        grow("{% set n.x = n.x.join(['', '', '']) %}"),
        grow("{% set n.x = '%s%s' | format(n.x, n.x) %}"),
        grow("{% set n.x = '{0}{0}'.format(n.x) %}"),
        grow("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
        grow("{% set n.l = [n.l, n.l] %}") + "{{ n.l | tojson }}",
        grow("{% set n.l = [n.l] %}") + "{{ n.l | tojson }}",
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ '{:>1000000000}'.format(1) }}".to_owned(),
        "{{ '{:>{}}'.format(1, 1000000000) }}".to_owned(),
        "x".repeat(1 << 20),
        "{{ messages | tojson(indent=1000000000) }}".to_owned(),
        "{{ 'a' | indent(1000000000, true) }}".to_owned(),
        "{{ [1] | batch(1000000000, 0) | list }}".to_owned(),
        "{{ [1] | slice(1000000000) | list }}".to_owned(),
        "{{ 9 ** 9 ** 9 }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('aa') }}".to_owned(),
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}".to_owned(),
        "{% for x in [[1]] recursive %}{{ loop([[x]]) }}{% endfor %}".to_owned(),
        "{% include 'chat' %}".to_owned(),
        "{% extends 'chat' %}".to_owned(),
        "{% import 'chat' as c %}".to_owned(),
        nested("{{ ", "1", " }}", 1).replace('1', &nested("(", "1", ")", 40_000)),
        nested("{{ ", "1", " }}", 1).replace('1', &nested("[", "1", "]", 40_000)),
        nested("{% if 1 %}", "x", "{% endif %}", 10_000),
        nested("{% for i in [1] %}", "x", "{% endfor %}", 8_000),
        "{{ strftime_now('%1000000000Y') }}".to_owned(),
        "{{ lipsum(1000000000) }}".to_owned(),
        "{{".to_owned(),
        "{% raw %}".to_owned(),
        "{% generation %}".to_owned(),
    ];
    // Long, but no more than that: these may succeed.
    let bounded = [
        format!("{{{{ {}1 }}}}", "not ".repeat(40_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(40_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(40_000)),
        format!("{{{{ x{} }}}}", "|string".repeat(30_000)),
        format!("{{{{ 'a'{} }}}}", " if 1 else 'b'".repeat(15_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(15_000)),
        grow("{% set n.l = [n.l] %}"),
        grow("{% set n.l = n.l | map('string') %}"),
        grow("{% set n.l = n.l | reverse %}"),
        "{% set n = namespace(l=1) %}{% for i in range(9999) %}{% for j in range(9999) %}{% set n.l = [n.l] %}{% endfor %}{% endfor %}".to_owned(),
        "{% set n = namespace(l=1) %}{% for j in range(10) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}{% endfor %}{{ n.l }}".to_owned(),
        "{% set n = namespace(l=1, m=1) %}{% for j in range(5) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% set n.m = [n.m] %}{% endfor %}{% endfor %}{{ n.l == n.m }}{{ n.l < n.m }}".to_owned(),
        grow("{% set n.l = {'a': n.l} %}") + "{{ n.l == n.l }}{{ n.l }}",
    ];
    for source in &failing {
        let start = Instant::now();
        let head: String = source.chars().take(100).collect();
        let result = run(source);
        let message = match result {
            Ok(text) => panic!("{head} gave {} bytes", text.len()),
            Err(error) => error.to_string(),
        };
        assert!(!message.contains('\n') && message.len() < 1000, "{head}: {message}");
        // The budget is a fraction of a second; the rest is for slow, busy machines.
        assert!(start.elapsed() < Duration::from_secs(10), "{head}: {:?}", start.elapsed());
    }
    for source in &bounded {
        let start = Instant::now();
        drop(run(source));
        let head: String = source.chars().take(100).collect();
        assert!(start.elapsed() < Duration::from_secs(10), "{head}: {:?}", start.elapsed());
    }
    // The budget of 64 MiB, a copy, the stack, and what the process has anyway.
    #[cfg(target_os = "linux")]
    assert!(peak_mib() < 400, "peak {} MiB", peak_mib());
}

/// The bounds leave room for long conversations.
#[test]
fn long_conversations_render() {
    let source = include_str!("vectors/thinking.jinja");
    let template = ChatTemplate::new(source, []).unwrap();
    let short: Vec<Message> =
        (0..4000).map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "ok")).collect();
    let long = [Message::new("user", "lorem ipsum ".repeat(1_000_000))];
    for messages in [&short[..], &long] {
        let text = template.render(messages, &RenderOptions::default()).unwrap();
        assert!(text.len() > 100_000);
    }
}
