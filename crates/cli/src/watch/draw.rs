//! The view: title, blocks, timeline, figures.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::film::{Block, Cell, Film, Kind};
use crate::generation::ratio;

/// Keys while the answer is being made.
pub const HELP_WHILE_IT_RUNS: &str = "Ctrl-C stops the answer";
/// Keys once it has ended.
pub const HELP_AFTERWARDS: &str = "←/→ pass by pass  space replay  q leave";

const MASK: &str = "░░";
const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Colours from unsure to sure, with the least confidence of each; of the 256 that terminals agree on.
const SCALE: [(f32, Color); 5] = [
    (0.0, Color::Indexed(160)),
    (0.4, Color::Indexed(172)),
    (0.6, Color::Indexed(178)),
    (0.8, Color::Indexed(106)),
    (0.95, Color::Indexed(34)),
];

/// Draws a film as it stands.
pub fn draw(frame: &mut Frame<'_>, film: &Film, title: &str, help: &str) {
    let rows = [
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ];
    let [head, blocks, timeline, figures, keys] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(heading(title), head);
    for (line, y) in tail(film, blocks).into_iter().zip(blocks.y..) {
        frame.render_widget(line, Rect { y, height: 1, ..blocks });
    }
    frame.render_widget(bars(film, timeline.width), timeline);
    frame.render_widget(numbers(film), figures);
    frame.render_widget(Line::styled(help.to_owned(), Style::new().add_modifier(Modifier::DIM)), keys);
}

fn heading(title: &str) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("{title}  "), Style::new().add_modifier(Modifier::BOLD))];
    let dim = Style::new().add_modifier(Modifier::DIM);
    spans.push(Span::styled("unsure ", dim));
    spans.extend(SCALE.map(|(_, color)| Span::styled("■", Style::new().fg(color))));
    spans.push(Span::styled(" sure", dim));
    Line::from(spans)
}

/// As many of the last lines as there is room for.
fn tail(film: &Film, area: Rect) -> Vec<Line<'static>> {
    let height = usize::from(area.height);
    if film.blocks().is_empty() {
        let text = match film.prompt_rows() {
            0 => "reading the prompt".to_owned(),
            rows => format!("reading the prompt: {rows} rows"),
        };
        return vec![Line::raw(text)];
    }
    let mut lines: Vec<Line<'static>> = Vec::new();
    for (index, block) in film.blocks().iter().enumerate().rev() {
        let mut above = block_lines(block, index, film.shown(), usize::from(area.width).max(4));
        above.append(&mut lines);
        lines = above;
        if lines.len() >= height {
            break;
        }
    }
    lines.split_off(lines.len().saturating_sub(height))
}

fn block_lines(block: &Block, index: usize, shown: usize, width: usize) -> Vec<Line<'static>> {
    let passes = if block.passes == 1 { "pass" } else { "passes" };
    let title = format!("{} {} · {} {passes}", block.title, index + 1, block.passes);
    let mut lines = vec![Line::styled(title, Style::new().add_modifier(Modifier::DIM))];
    let (mut spans, mut used) = (Vec::new(), 0);
    for cell in &block.cells {
        let span = cell_span(cell, shown);
        // A token that is wider than the screen is cut by it.
        if used > 0 && used + span.width() > width {
            lines.push(Line::from(std::mem::take(&mut spans)));
            used = 0;
        }
        used += span.width();
        spans.push(span);
    }
    lines.push(Line::from(spans));
    lines
}

fn cell_span(cell: &Cell, shown: usize) -> Span<'static> {
    let text = match cell.kind {
        Kind::Mask => MASK.to_owned(),
        _ if cell.is_control() => "■".to_owned(),
        _ if cell.text.is_empty() => "∅".to_owned(),
        // No token may move the terminal's cursor.
        _ => cell.text.replace('\n', "⏎").replace('\t', "⇥").replace(char::is_control, "·"),
    };
    let mut style = Style::new();
    if let Some(confidence) = cell.confidence {
        style = style.fg(color(confidence));
    }
    let modifier = match cell.kind {
        Kind::Mask => Modifier::DIM,
        Kind::Draft => Modifier::DIM | Modifier::ITALIC,
        Kind::Rejected => Modifier::CROSSED_OUT,
        Kind::Known if cell.pass + 1 == shown => Modifier::BOLD | Modifier::REVERSED,
        Kind::Known => Modifier::empty(),
    };
    Span::styled(text, style.add_modifier(modifier))
}

/// The colour of a confidence.
fn color(confidence: f32) -> Color {
    let step = SCALE.iter().rev().find(|(least, _)| confidence >= *least);
    step.map_or(SCALE[0].1, |(_, color)| *color)
}

/// One bar a pass, as high as it decided many tokens; the last one shown stands out.
fn bars(film: &Film, width: u16) -> Line<'static> {
    let (passes, shown, width) = (film.passes(), film.shown(), usize::from(width));
    let most = passes.iter().map(|pass| pass.decided).max().unwrap_or(0).max(1);
    let start = shown.saturating_sub(width);
    let bar = |(index, pass): (usize, &super::film::Pass)| {
        let bar = match pass.decided {
            0 => "·",
            decided => BARS[(decided * BARS.len()).div_ceil(most) - 1],
        };
        let style = match index + 1 {
            at if at == shown => Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD),
            at if at > shown => Style::new().add_modifier(Modifier::DIM),
            _ => Style::new(),
        };
        Span::styled(bar, style)
    };
    Line::from_iter(passes.iter().enumerate().skip(start).take(width).map(bar))
}

fn numbers(film: &Film) -> Line<'static> {
    let shown = &film.passes()[..film.shown()];
    let tokens = film.tokens();
    let deciding = shown.iter().filter(|pass| pass.deciding).count();
    let seconds = shown.last().map_or(0.0, |pass| pass.at.as_secs_f64());
    Line::raw(format!(
        "pass {} of {} │ block {} │ {tokens} tokens │ {:.1} tokens/pass │ {seconds:.2} s │ {:.0} tok/s",
        film.shown(),
        film.len(),
        film.blocks().len(),
        ratio(tokens as f64, deciding as f64),
        ratio(tokens as f64, seconds),
    ))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use shamrock_generate::Work;

    use super::super::film::tests::{denoise, film};
    use super::*;

    fn drawn(film: &Film, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, film, "nano", HELP_WHILE_IT_RUNS)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let cells = buffer.content().chunks(usize::from(buffer.area.width));
        cells.map(|row| row.iter().map(|c| c.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_block_is_drawn_with_its_masks_timeline_and_figures() {
        let mut film = film(&[
            Work::Commit,
            denoise(0, &[0, 2], &[0, 2], &[0.97, 0.5]),
            denoise(0, &[1, 3], &[1, 3], &[0.9, 0.9]),
            denoise(1, &[3], &[7], &[0.2]),
        ]);
        film.show(2);
        let buffer = drawn(&film, 80, 8);
        assert_eq!(
            lines(&buffer),
            [
                "nano  unsure ■■■■■ sure",
                "block 1 · 1 pass",
                "a░░c░░",
                "",
                "",
                "·██▄",
                "pass 2 of 4 │ block 1 │ 2 tokens │ 2.0 tokens/pass │ 0.20 s │ 10 tok/s",
                "Ctrl-C stops the answer",
            ]
        );
        let (sure, mask, unsure) = (&buffer[(0, 2)], &buffer[(1, 2)], &buffer[(3, 2)]);
        assert_eq!((sure.fg, unsure.fg), (Color::Indexed(34), Color::Indexed(172)));
        assert!(sure.modifier.contains(Modifier::REVERSED) && mask.modifier.contains(Modifier::DIM));
        film.show(3);
        let later = drawn(&film, 80, 8);
        assert!(!later[(0, 2)].modifier.contains(Modifier::REVERSED), "fixed by an earlier pass");
        assert!(later[(1, 2)].modifier.contains(Modifier::REVERSED));
        // The end of a long answer is what is seen.
        film.show(4);
        assert_eq!(lines(&drawn(&film, 80, 6))[1..3], ["block 2 · 1 pass", "░░░░░░h"]);
    }

    #[test]
    fn anything_is_drawn_on_any_screen() {
        let mut film = film(&[
            Work::Propose { drafts: &[0, 1], confidence: &[0.5, f32::NAN] },
            Work::Verify { width: 3, drafts: &[0, 1], accepted: 1, bonus: 2, ahead: &[], confidence: &[] },
            Work::Decode { token: 30, confidence: 0.1 },
        ]);
        for shown in 0..=3 {
            film.show(shown);
            for (width, height) in [(1, 1), (3, 2), (5, 6), (200, 3)] {
                drawn(&film, width, height);
            }
        }
        assert_eq!(lines(&drawn(&Film::default(), 30, 5))[1], "reading the prompt");
    }

    #[test]
    fn a_token_cannot_steer_the_terminal() {
        let cell = Cell { kind: Kind::Known, text: "\x1b[2J\n\t".into(), confidence: None, pass: 0 };
        assert_eq!(cell_span(&cell, 0).content, "·[2J⏎⇥");
        let end = Cell { text: "<|im_end|>".into(), ..cell };
        assert_eq!(cell_span(&end, 0).content, "■");
    }
}
