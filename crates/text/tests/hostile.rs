//! Templates that try to hang the process, fill its memory or overflow its stack. They come with
//! a model file, so they are anyone's.

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
        // Lists that double.
        grow("{% set n.l = n.l + n.l %}"),
        "{{ [0] * 10**18 == [0] * 10**18 }}".to_owned(),
        "{{ [0] * 10**18 is eq([0] * 10**18) }}".to_owned(),
        "{{ ''.join([''] * 10**18) }}".to_owned(),
        "{{ 'x'.startswith(['y'] * 10**18) }}".to_owned(),
        "{{ ([0] * 10**18).count(1) }}".to_owned(),
        "{% set a, b = [0] * 10**18 %}".to_owned(),
        "{% set a = [1] %}".to_owned() + &"{% set a = a + a %}".repeat(60),
        // Copies of copies.
        "{% set n = namespace(l=range(9000)) %}{% for i in range(9000) %}{% set n.l = n.l[1:] %}{% endfor %}".to_owned(),
        "{% set n = namespace(l=range(9000)) %}{% for i in range(9000) %}{% set n.l = n.l[::-1] %}{% endfor %}".to_owned(),
        "{% set n = namespace(l='x' * 90000) %}{% for i in range(9000) %}{% set n.l = n.l[:-1] %}{% endfor %}".to_owned(),
        // Work that leaves nothing behind.
        "{% set a = 'a' * 10000000 %}{% set b = 'a' * 10000000 %}{% for i in range(9000) %}{{ 1 if a < b }}{% endfor %}".to_owned(),
        "{% set a = 'a' * 10000000 %}{% set d = {a: 1} %}{% for i in range(9000) %}{{ 1 if d[a] }}{% endfor %}".to_owned(),
        "{% set a = range(9000) %}{% for i in a %}{{ 1 if -1 in a }}{% endfor %}".to_owned(),
        "{% set a = range(9000) | list %}{% for i in a %}{% set m = a | max %}{% endfor %}".to_owned(),
        "{{ range(200000) | unique | length }}".to_owned(),
        "{{ ('ab' * 100000).strip('ab' * 100000) }}".to_owned(),
        "{{ ('{0}' * 10000).format('a' * 100000) }}".to_owned(),
        "{{ ('%(a)s' * 10000) | format(a='a' * 100000) }}".to_owned(),
        "{{ ('%s' * 2000) | format(*(['a' * 100000] * 2000)) }}".to_owned(),
        "{{ (['a', 1] * 100) | sort }}".to_owned(),
        // Values too deep to drop.
        "{% set n = namespace(l=[1]) %}{% for i in range(9000) %}{% for x in [n.l] %}{% set n.l = [loop] %}{% endfor %}{% endfor %}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([loop]) }}{% endfor %}".to_owned(),
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
        "{% set nan = 1e308 * 10 - 1e308 * 10 %}{{ ([nan, 1, 3, 2] * 100) | sort | length }}".to_owned(),
        "{% set n = namespace(l=[]) %}{% for i in range(9000) %}{% set n.l = [[], [], [], [], [], [], [], n.l] %}{% endfor %}".to_owned(),
        "{{ ('a,' * 400000).split(',') | map('list') | list | length }}".to_owned(),
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

/// A list that holds one list twice, and so on, has few values in it and a print without end.
#[test]
fn walks_through_shared_values_are_refused() {
    let pair = "{% set n = namespace(l=['a'], m=['a']) %}{% for i in range(60) %}\
        {% set n.l = [n.l, n.l] %}{% set n.m = {'k': n.m, 'j': n.m} %}{% set n.k = [n.l, n.l] %}{% endfor %}";
    let walks = [
        "n.l",
        "n.m",
        "n.l ~ ''",
        "n.l | string",
        "[n.l] | join",
        "'-'.join([n.l])",
        "n.l | tojson",
        "n.m | tojson",
        "n.l == n.k",
        "n.l != n.k",
        "n.l < n.k",
        "n.l in [n.k]",
        "[n.k].count(n.l)",
        "[n.k].index(n.l)",
        "n.l is eq(n.k)",
        "n.l is sameas(n.k)",
        "[n.l, n.k] | sort",
        "[n.l, n.k] | unique",
        "[n.l, n.k] | max",
        "'%s' | format(n.l)",
        "'{}'.format(n.l)",
        "'%s' % [n.l]",
        "[n.l] | map('string') | list",
        "[n.l] | select('eq', n.k) | list",
        "[{'a': n.l}] | selectattr('a', 'eq', n.k) | list",
        "{'a': n.l} | dictsort(by='value')",
        "raise_exception(n.l)",
        "n.l | upper",
        "[n.l, n.k] | sum(start='')",
    ];
    for walk in walks {
        let start = Instant::now();
        let result = run(&format!("{pair}{{{{ {walk} }}}}"));
        if walk == "[n.l, n.k] | sum(start='')" {
            assert!(matches!(result, Err(Error::Template { .. })), "{walk}: {result:?}");
        } else {
            assert!(matches!(result, Err(Error::TemplateTooCostly { .. })), "{walk}: {result:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{walk}: {:?}", start.elapsed());
    }
    // To make them, or to look at their outermost list, costs little.
    assert_eq!(run(&format!("{pair}{{{{ n.l | length }}}}{{{{ n.l is defined }}}}")).unwrap(), "2True");
}

/// A namespace is known by its name, so one that holds itself can be printed and compared.
#[test]
fn a_namespace_may_hold_itself() {
    let source = "{% set n = namespace(a=1) %}{% set n.x = n %}{% set n.y = [n, {'k': n}] %}\
        {{ n }} {{ n.y }} {{ n == n.x }} {{ n.y == n.x.y }} {{ n.x.x.x.a }}";
    assert_eq!(run(source).unwrap(), "<namespace> [<namespace>, {'k': <namespace>}] True True 1");
    for refused in ["{{ n | tojson }}", "{{ n < n }}", "{% for a in n %}{% endfor %}", "{{ n | length }}"] {
        let result = run(&format!("{source}{refused}"));
        assert!(matches!(result, Err(Error::Template { .. })), "{refused}: {result:?}");
    }
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
