//! The configuration file: values for flags that neither the command line nor the environment gives.
//!
//! There is no second list of options. A key is the long name of a flag, its value goes through that
//! flag's own parser and then takes the place of its built-in default, so that clap's order holds: flag,
//! environment, file, default.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::ArgAction;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

use crate::folders;

/// Help headings of flags that mean the same in every command that has them: these, and the model,
/// can stand at the top level of the file.
const SHARED: [&str; 3] = ["Engine", "Generation", "Defaults of requests"];

/// Nobody writes more settings than this; a file that is longer is another kind of file.
const MAX_BYTES: u64 = 1 << 20;

/// A configuration file that has been read.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

/// One `key = value` of the file.
#[derive(Clone, Debug, PartialEq)]
struct Setting {
    /// The command whose table it stands in; none at the top level.
    command: Option<String>,
    key: String,
    value: Value,
    line: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Switch(bool),
    /// What would stand behind the flag, once or several times.
    Words(Vec<String>),
}

impl ConfigFile {
    /// Reads the file that was named, or the one at its usual place if that exists.
    pub fn read(named: Option<&Path>) -> Result<Option<ConfigFile>> {
        let usual = || folders::config().map(|dir| dir.join("config.toml")).filter(|path| path.exists());
        let Some(path) = named.map(Path::to_owned).or_else(usual) else {
            return Ok(None);
        };
        let mut text = String::new();
        std::fs::File::open(&path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
            .with_context(|| format!("reading the configuration file {}", path.display()))?;
        ensure!(text.len() as u64 <= MAX_BYTES, "{}: a configuration file has at most 1 MiB", path.display());
        Ok(Some(ConfigFile { path, text }))
    }

    /// The program's command line with this file's values for defaults. `given` is the command line
    /// as it parses without them.
    pub fn complete(&self, mut program: Command, given: &ArgMatches) -> Result<Command> {
        let settings = self.settings()?;
        for setting in &settings {
            self.check(&program, setting)?;
        }
        let Some((name, given)) = given.subcommand() else {
            return Ok(program);
        };
        let Some(command) = program.find_subcommand(name) else {
            return Ok(program);
        };
        // What stands in the command's own table comes later, and so holds.
        let (own, shared): (Vec<_>, Vec<_>) = settings
            .iter()
            .filter(|setting| setting.command.as_deref().is_none_or(|command| command == name))
            .partition(|setting| setting.command.is_some());
        let mut defaults: Vec<(String, &Setting)> = Vec::new();
        for setting in shared.into_iter().chain(own) {
            let Some(arg) = find(command, setting) else { continue };
            let rivals = rivals(command, arg);
            if rivals.iter().any(|rival| is_given(given, rival)) {
                continue;
            }
            let rival = defaults.iter().position(|(id, _)| rivals.iter().any(|rival| rival == id));
            if let Some(rival) = rival.filter(|&at| defaults[at].1.command == setting.command) {
                let other = defaults[rival].1;
                bail!(
                    "{}: `{}` and `{}` (line {}) cannot both hold",
                    self.place(setting.line),
                    setting.key,
                    other.key,
                    other.line
                );
            }
            defaults.retain(|(id, _)| id != arg.get_id().as_str() && !rivals.contains(id));
            defaults.push((arg.get_id().to_string(), setting));
        }
        for (id, setting) in defaults {
            let values = match &setting.value {
                Value::Switch(on) => vec![on.to_string()],
                Value::Words(words) => words.clone(),
            };
            program =
                program.mut_subcommand(name, |command| command.mut_arg(id, |arg| arg.default_values(values)));
        }
        Ok(program)
    }

    /// Everything the file sets, in its order.
    fn settings(&self) -> Result<Vec<Setting>> {
        let table = DeTable::parse(&self.text).map_err(|error| {
            let at = error.span().map_or(1, |span| self.line(span.start));
            anyhow::anyhow!("{}: {}", self.place(at), error.message().trim_end())
        })?;
        let mut settings = Vec::new();
        for (key, value) in table.get_ref() {
            let mut take = |command: Option<&str>, key: &toml::Spanned<_>, value| -> Result<()> {
                let (key, line) =
                    (AsRef::<str>::as_ref(key.get_ref()).to_owned(), self.line(key.span().start));
                let value = Value::read(value).with_context(|| format!("{}: `{key}`", self.place(line)))?;
                settings.push(Setting { command: command.map(str::to_owned), key, value, line });
                Ok(())
            };
            match value.get_ref() {
                DeValue::Table(own) => {
                    for (inner, value) in own {
                        take(Some(key.get_ref()), inner, value.get_ref())?;
                    }
                }
                value => take(None, key, value)?,
            }
        }
        settings.sort_by_key(|setting| setting.line);
        Ok(settings)
    }

    /// That a setting names a flag, and that the flag takes its value.
    fn check(&self, program: &Command, setting: &Setting) -> Result<()> {
        let Setting { key, line, .. } = setting;
        if let Some(name) = &setting.command {
            ensure!(
                program.find_subcommand(name).is_some(),
                "{}: unknown table `[{name}]`: there is no such command",
                self.place(*line)
            );
        }
        let commands = program.get_subcommands();
        let mut args = commands
            .filter(|command| setting.command.as_deref().is_none_or(|name| command.get_name() == name))
            .filter_map(|command| find(command, setting))
            .peekable();
        if args.peek().is_none() {
            match &setting.command {
                Some(name) => {
                    bail!("{}: unknown key `{key}`: `shamrock {name}` has no flag --{key}", self.place(*line))
                }
                None => bail!(
                    "{}: unknown key `{key}`: here stand `model` and flags under Engine and Generation; \
                     a command's others go into its table, like [serve]",
                    self.place(*line)
                ),
            }
        }
        for arg in args {
            setting
                .value
                .check(arg, key)
                .map_err(|problem| anyhow::anyhow!("{}: `{key}`: {problem}", self.place(*line)))?;
        }
        Ok(())
    }

    /// Number of the line with this byte, from 1.
    fn line(&self, byte: usize) -> usize {
        1 + self.text.bytes().take(byte).filter(|&b| b == b'\n').count()
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }
}

impl Value {
    fn read(value: &DeValue<'_>) -> Result<Value> {
        Ok(match value {
            DeValue::Boolean(on) => Value::Switch(*on),
            DeValue::Array(items) => {
                let words = items.iter().map(|item| word(item.get_ref()));
                Value::Words(words.collect::<Result<_>>()?)
            }
            value => Value::Words(vec![word(value)?]),
        })
    }

    /// Whether a flag takes this value, by the flag's own parser.
    fn check(&self, arg: &Arg, key: &str) -> std::result::Result<(), String> {
        let is_switch = !arg.get_action().takes_values();
        let words = match self {
            Value::Switch(_) if is_switch => return Ok(()),
            Value::Switch(_) => return Err("expected a value, found true or false".into()),
            Value::Words(_) if is_switch => return Err("expected true or false".into()),
            Value::Words(words) => words,
        };
        let delimiter = arg.get_value_delimiter();
        let several = delimiter.is_some() || matches!(arg.get_action(), ArgAction::Append);
        if !several && words.len() != 1 {
            return Err("expected one value, found a list".into());
        }
        let alone = Arg::new(key.to_owned())
            .long(key.to_owned())
            .action(ArgAction::Append)
            .value_parser(arg.get_value_parser().clone());
        let line = words.iter().map(|word| format!("--{key}={word}"));
        let trial = Command::new("trial").no_binary_name(true).arg(alone).try_get_matches_from(line);
        trial.map(drop).map_err(|error| {
            // The first paragraph; the rest points to a command line that is not at fault.
            let text = error.to_string();
            let paragraph: Vec<&str> = text.lines().map(str::trim).take_while(|l| !l.is_empty()).collect();
            paragraph.join(" ").trim_start_matches("error: ").to_owned()
        })
    }
}

fn word(value: &DeValue<'_>) -> Result<String> {
    Ok(match value {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .context("a whole number of at most 64 bits")?
            .to_string(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            bail!("expected a text, a number, true, false, or a list of texts or numbers")
        }
    })
}

/// The argument of a command that a setting is for.
fn find<'a>(command: &'a Command, setting: &Setting) -> Option<&'a Arg> {
    let shared = setting.command.is_none();
    command.get_arguments().find(|arg| {
        let is_model = arg.is_positional() && !arg.is_required_set() && arg.get_id() == "model";
        let name = if is_model { Some("model") } else { arg.get_long() };
        let heading = arg.get_help_heading().is_some_and(|heading| SHARED.contains(&heading));
        name == Some(&setting.key) && !arg.is_required_set() && (!shared || is_model || heading)
    })
}

/// Ids of the arguments that cannot stand beside one, whichever of the two says so.
fn rivals(command: &Command, arg: &Arg) -> Vec<String> {
    let named = command.get_arg_conflicts_with(arg).into_iter();
    let naming = command.get_arguments().filter(|other| {
        command.get_arg_conflicts_with(other).iter().any(|rival| rival.get_id() == arg.get_id())
    });
    named.chain(naming).map(|arg| arg.get_id().to_string()).collect()
}

/// Whether the command line or the environment has an argument.
fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// What a command line comes to beside a file.
    fn parse(file: &str, line: &[&str]) -> Result<ArgMatches> {
        let file = ConfigFile { path: "c.toml".into(), text: file.into() };
        let line: Vec<&str> = std::iter::once(&"shamrock").chain(line).copied().collect();
        let given = Cli::command().try_get_matches_from(&line)?;
        Ok(file.complete(Cli::command(), &given)?.try_get_matches_from(&line)?)
    }

    fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, id: &str) -> Option<T> {
        matches.subcommand().unwrap().1.get_one::<T>(id).cloned()
    }

    fn refusal(file: &str) -> String {
        format!("{:#}", parse(file, &["run"]).unwrap_err())
    }

    #[test]
    fn a_flag_beats_the_file_and_a_table_the_top_level() {
        let file = "threads = 3\nmodel = 'a.cmf'\n[serve]\nport = 9000\nthreads = 5\ncors-origin = ['https://x', 'https://y']\n";
        let serve = |line: &[&str]| parse(file, &[&["serve"], line].concat()).unwrap();
        assert_eq!(value::<u16>(&serve(&[]), "threads"), Some(5));
        assert_eq!(value::<u16>(&serve(&["--threads", "7"]), "threads"), Some(7));
        assert_eq!(value::<u16>(&serve(&[]), "port"), Some(9000));
        assert_eq!(value::<PathBuf>(&serve(&[]), "model"), Some("a.cmf".into()));
        assert_eq!(value::<PathBuf>(&serve(&["b.cmf"]), "model"), Some("b.cmf".into()));
        let serve = serve(&[]);
        let origins = serve.subcommand().unwrap().1.get_many::<String>("cors_origin").unwrap();
        assert_eq!(origins.collect::<Vec<_>>(), ["https://x", "https://y"]);
        assert_eq!(value::<u16>(&parse(file, &["run"]).unwrap(), "threads"), Some(3));
    }

    #[test]
    fn a_flag_puts_aside_what_cannot_stand_beside_it() {
        let file = "rule = 'margin:0.2'\n[eval]\nthreshold = 0.5\n";
        let has = |line: &[&str], id| value_given(&parse(file, line).unwrap(), id);
        assert!(has(&["run"], "rule"));
        assert!(!has(&["run", "--threshold", "0.9"], "rule"));
        assert!(has(&["eval"], "threshold") && !has(&["eval"], "rule"));
        assert!(
            refusal("threshold = 0.5\nrule = 'margin:0.2'\n").contains("c.toml:2: `rule` and `threshold`")
        );
    }

    fn value_given(matches: &ArgMatches, id: &str) -> bool {
        matches.subcommand().unwrap().1.contains_id(id)
    }

    #[test]
    fn switches_are_booleans() {
        let ahead =
            |file| *parse(file, &["run"]).unwrap().subcommand().unwrap().1.get_one::<bool>("ahead").unwrap();
        assert!(ahead("ahead = true") && !ahead("ahead = false") && !ahead(""));
        assert!(refusal("ahead = 1").contains("expected true or false"));
        assert!(refusal("threads = true").contains("expected a value"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (file, message) in [
            ("\nthread = 2\n", "c.toml:2: unknown key `thread`"),
            ("[serve]\nporty = 2\n", "c.toml:2: unknown key `porty`: `shamrock serve` has no flag --porty"),
            ("[sserve]\nport = 2\n", "c.toml:2: unknown table `[sserve]`"),
            ("port = 2\n", "c.toml:1: unknown key `port`"),
            ("seed = 1\n[synth]\nout = 'x'\n", "c.toml:3: unknown key `out`"),
            ("# a comment\nthreads = 'two'\n", "c.toml:2: `threads`: invalid value 'two'"),
            ("threads = 0\n", "c.toml:1: `threads`: invalid value '0'"),
            ("threads = [1, 2]\n", "c.toml:1: `threads`: expected one value"),
            ("backend = 'tpu'\n", "[possible values: auto, "),
            ("ctx = 1979-05-27\n", "c.toml:1: `ctx`: expected a text"),
            ("mode = denoise\n", "c.toml:1: "),
            // Also for commands that do not run now.
            ("[serve]\nport = 70000\n", "c.toml:2: `port`: invalid value '70000'"),
        ] {
            let told = refusal(file);
            assert!(told.contains(message), "{file:?}: {told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
    }
}
