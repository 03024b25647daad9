//! The interactive chat: history, several lines, an answer that Ctrl-C stops.

use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use shamrock_text::Message;

use super::{Runner, dim, reply};
use crate::interrupt;
use crate::output::{noteln, print, println};

const HELP: &str = "\
/clear   forget the conversation
/help    this text
/exit    leave (so does Ctrl-D)

End a line with \\ to go on in the next one, or write several lines between lines of \"\"\".
Ctrl-C stops an answer; what has been said stays.
";

/// What a person entered.
enum Input {
    Message(String),
    Clear,
    Help,
    Unknown(String),
    Exit,
}

/// Chats until the person leaves.
pub(super) fn chat(runner: &mut Runner, mut messages: Vec<Message>, path: &Path) -> Result<()> {
    runner.interrupt = interrupt::on_ctrl_c()?;
    let mut editor = DefaultEditor::new().context("opening the terminal")?;
    println(&format!("{}, {} mode. /help tells what you can do.", path.display(), runner.options.mode))?;
    let opening: Vec<Message> = messages.iter().take_while(|m| m.role == "system").cloned().collect();
    if messages.len() > opening.len() {
        let turns = messages.iter().filter(|m| m.role == "user").count();
        println(&format!("Going on with a conversation of {turns} turns; /clear forgets it."))?;
    }
    loop {
        match read(&mut editor)? {
            Input::Exit => return Ok(()),
            Input::Help => print(HELP)?,
            Input::Unknown(command) => println(&format!("{command} is not known; /help lists the commands"))?,
            Input::Clear => messages.clone_from(&opening),
            Input::Message(text) => {
                messages.push(Message::new("user", text));
                // A question that cannot be answered is taken back, so that the chat goes on.
                match turn(runner, &messages) {
                    Ok(reply) => {
                        messages.push(reply);
                        if let Err(error) = runner.save(&messages) {
                            noteln(&format!("error: {error:#}"));
                        }
                    }
                    Err(error) => {
                        messages.pop();
                        noteln(&format!("error: {error:#}"));
                    }
                }
            }
        }
    }
}

fn turn(runner: &mut Runner, messages: &[Message]) -> Result<Message> {
    runner.interrupt.store(false, Ordering::Relaxed);
    let prompt = runner.text.chat(messages, &runner.render)?;
    let answer = runner.show(&prompt)?;
    println(&dim(&format!("[{}]", answer.summary())))?;
    Ok(reply(answer))
}

/// One input, which may span lines; remembered for the arrow keys.
fn read(editor: &mut DefaultEditor) -> Result<Input> {
    let mut lines: Vec<String> = Vec::new();
    let mut fenced = false;
    loop {
        let line = match editor.readline(if lines.is_empty() && !fenced { "> " } else { ". " }) {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(Input::Exit),
            Err(ReadlineError::Interrupted) => {
                lines.clear();
                fenced = false;
                continue;
            }
            Err(error) => return Err(error).context("reading a line"),
        };
        if line.trim() == "\"\"\"" {
            if fenced {
                break;
            }
            fenced = true;
            continue;
        }
        if !fenced && let Some(start) = line.strip_suffix('\\') {
            lines.push(start.to_owned());
            continue;
        }
        if !fenced && lines.is_empty() && line.trim().is_empty() {
            continue;
        }
        lines.push(line);
        if !fenced {
            break;
        }
    }
    let text = lines.join("\n");
    editor.add_history_entry(&text).context("keeping the history")?;
    Ok(interpret(text))
}

fn interpret(text: String) -> Input {
    match text.trim() {
        "/exit" | "/quit" | "/bye" => Input::Exit,
        "/help" | "/?" => Input::Help,
        "/clear" => Input::Clear,
        command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
            Input::Unknown(command.to_owned())
        }
        _ => Input::Message(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{Input, interpret};

    #[test]
    fn commands_are_told_from_messages() {
        assert!(matches!(interpret("/exit".into()), Input::Exit));
        assert!(matches!(interpret(" /clear ".into()), Input::Clear));
        assert!(matches!(interpret("/nonsense".into()), Input::Unknown(c) if c == "/nonsense"));
        assert!(matches!(interpret("/etc/hosts is a file".into()), Input::Message(_)));
    }
}
