//! Statements, variables and calls.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::SystemTime;

use minijinja::machinery::ast::{self, CallArg, Expr, Stmt};

use super::args::Args;
use super::budget::{Budget, Fault, STEP};
use super::functions;
use super::value::{Function, List, Loop, Value};

/// Nesting of statements, expressions and calls in evaluation.
const MAX_DEPTH: usize = 600;

/// Cost of a scope, a macro or a namespace.
const SCOPE: u64 = 128;

/// Variables of a block, and the blocks around it.
///
/// Scopes hold values and values hold no scopes, so that a scope ends when nothing needs it.
#[derive(Debug, Default)]
pub(super) struct Scope<'t> {
    variables: RefCell<HashMap<&'t str, Value>>,
    parent: Option<Rc<Self>>,
}

/// A macro, and where it was declared.
struct Macro<'t> {
    declaration: &'t ast::Macro<'t>,
    scope: Rc<Scope<'t>>,
}

/// A recursive loop, and where it stands.
struct Recursion<'t> {
    body: &'t ast::ForLoop<'t>,
    scope: Rc<Scope<'t>>,
}

/// What happens after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// A template at work.
pub(super) struct Interpreter<'t> {
    pub(super) budget: Budget,
    pub(super) now: Option<SystemTime>,
    /// Values of `namespace(…)`, by number.
    pub(super) namespaces: Vec<HashMap<Rc<str>, Value>>,
    macros: Vec<Macro<'t>>,
    recursions: Vec<Recursion<'t>>,
    scope: Rc<Scope<'t>>,
    out: String,
    depth: usize,
}

impl<'t> Interpreter<'t> {
    /// An interpreter whose template sees these variables.
    pub(super) fn new(budget: Budget, variables: HashMap<&'t str, Value>, now: Option<SystemTime>) -> Self {
        Self {
            budget,
            now,
            namespaces: Vec::new(),
            macros: Vec::new(),
            recursions: Vec::new(),
            scope: Rc::new(Scope { variables: RefCell::new(variables), parent: None }),
            out: String::new(),
            depth: 0,
        }
    }

    /// Runs a template and gives what it writes.
    pub(super) fn run(mut self, template: &'t Stmt<'t>) -> Result<String, Fault> {
        self.statement(template)?;
        Ok(self.out)
    }

    /// Runs `work` one level deeper, at the cost of a step.
    pub(super) fn deeper<T>(
        &mut self,
        line: u16,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.budget.spend(STEP).map_err(|fault| fault.at(line.into()))?;
        if self.depth == MAX_DEPTH {
            return Err(Fault::new(format!("nested deeper than {MAX_DEPTH}")).at(line.into()));
        }
        self.depth += 1;
        let result = work(self).map_err(|fault| fault.at(line.into()));
        self.depth -= 1;
        result
    }

    /// Runs `work` in a new scope within `parent`.
    fn scoped<T>(
        &mut self,
        parent: Rc<Scope<'t>>,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.budget.spend(SCOPE)?;
        let scope = Rc::new(Scope { variables: RefCell::default(), parent: Some(parent) });
        let outer = std::mem::replace(&mut self.scope, scope);
        let result = work(self);
        self.scope = outer;
        result
    }

    /// What `work` writes.
    fn capture<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<Value, Fault> {
        let outer = std::mem::take(&mut self.out);
        let result = work(self);
        let written = std::mem::replace(&mut self.out, outer);
        result?;
        self.budget.text(written)
    }

    fn write(&mut self, text: &str) -> Result<(), Fault> {
        self.budget.spend(text.len() as u64)?;
        self.out.push_str(text);
        Ok(())
    }

    fn statements(&mut self, statements: &'t [Stmt<'t>]) -> Result<Flow, Fault> {
        for statement in statements {
            match self.statement(statement)? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'t Stmt<'t>) -> Result<Flow, Fault> {
        let line = match statement {
            Stmt::EmitExpr(emit) => emit.span().start_line,
            Stmt::ForLoop(each) => each.span().start_line,
            Stmt::Set(set) => set.span().start_line,
            Stmt::WithBlock(with) => with.span().start_line,
            Stmt::CallBlock(block) => block.span().start_line,
            Stmt::FilterBlock(block) => block.span().start_line,
            Stmt::AutoEscape(block) => block.span().start_line,
            _ => 0,
        };
        self.deeper(line, |this| this.statement_at_depth(statement))
    }

    fn statement_at_depth(&mut self, statement: &'t Stmt<'t>) -> Result<Flow, Fault> {
        match statement {
            Stmt::Template(template) => return self.statements(&template.children),
            Stmt::EmitRaw(raw) => self.write(raw.raw)?,
            Stmt::EmitExpr(emit) => {
                let value = self.evaluate(&emit.expr)?;
                let text = value.print(&self.budget)?;
                self.write(&text)?;
            }
            Stmt::IfCond(branch) => {
                let body = if self.evaluate(&branch.expr)?.is_true() {
                    &branch.true_body
                } else {
                    &branch.false_body
                };
                return self.statements(body);
            }
            Stmt::ForLoop(each) => {
                let items = self.evaluate(&each.iter)?.items(&self.budget)?;
                let scope = self.scope.clone();
                let recursion = if each.recursive {
                    self.budget.spend(SCOPE)?;
                    self.recursions.push(Recursion { body: each, scope: scope.clone() });
                    Some(self.recursions.len() - 1)
                } else {
                    None
                };
                self.for_each(each, &scope, items, 0, recursion)?;
            }
            Stmt::Set(set) => {
                let value = self.evaluate(&set.expr)?;
                self.assign(&set.target, value)?;
            }
            Stmt::SetBlock(set) => {
                let value = self.captured_block(&set.body)?;
                let value = match &set.filter {
                    Some(filter) => self.filter_chain(filter, value)?,
                    None => value,
                };
                self.assign(&set.target, value)?;
            }
            Stmt::FilterBlock(block) => {
                let value = self.captured_block(&block.body)?;
                let text = self.filter_chain(&block.filter, value)?.print(&self.budget)?;
                self.write(&text)?;
            }
            Stmt::WithBlock(with) => {
                return self.scoped(self.scope.clone(), |this| {
                    for (target, value) in &with.assignments {
                        let value = this.evaluate(value)?;
                        this.assign(target, value)?;
                    }
                    this.statements(&with.body)
                });
            }
            Stmt::Macro(declaration) => {
                let value = self.declare(declaration)?;
                self.set(declaration.name, value)?;
            }
            Stmt::CallBlock(block) => {
                let caller = self.declare(&block.macro_decl)?;
                let text = self.call(&block.call, Some(caller))?.print(&self.budget)?;
                self.write(&text)?;
            }
            Stmt::Do(statement) => {
                self.call(&statement.call, None)?;
            }
            Stmt::Break(_) => return Ok(Flow::Break),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::AutoEscape(_) => return Err(Fault::new("autoescape blocks are not supported")),
        }
        Ok(Flow::Next)
    }

    fn captured_block(&mut self, body: &'t [Stmt<'t>]) -> Result<Value, Fault> {
        let scope = self.scope.clone();
        self.capture(|this| this.scoped(scope, |this| this.statements(body)))
    }

    /// Runs a loop over `items` within `scope`.
    fn for_each(
        &mut self,
        each: &'t ast::ForLoop<'t>,
        scope: &Rc<Scope<'t>>,
        items: Rc<List>,
        depth: usize,
        recursion: Option<usize>,
    ) -> Result<(), Fault> {
        let items = match &each.filter_expr {
            None => items,
            Some(filter) => {
                let mut kept = Vec::new();
                for item in &items.items {
                    let keep = self.scoped(scope.clone(), |this| {
                        this.assign(&each.target, item.clone())?;
                        Ok(this.evaluate(filter)?.is_true())
                    })?;
                    if keep {
                        kept.push(item.clone());
                    }
                }
                self.budget.sequence(kept, false)?
            }
        };
        for (index, item) in items.items.iter().enumerate() {
            let flow = self.scoped(scope.clone(), |this| {
                let state = Loop { items: items.clone(), index, depth, recursion };
                this.set("loop", Value::Loop(Rc::new(state)))?;
                this.assign(&each.target, item.clone())?;
                this.statements(&each.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        if items.items.is_empty() {
            self.scoped(scope.clone(), |this| this.statements(&each.else_body))?;
        }
        Ok(())
    }

    /// `loop(items)`: what the loop writes for them.
    pub(super) fn recurse(&mut self, state: &Loop, args: &mut Args) -> Result<Value, Fault> {
        let Some(recursion) = state.recursion else {
            return Err(Fault::new("`loop` is called, but the loop is not recursive"));
        };
        let items = args.required("iterable")?.items(&self.budget)?;
        args.finish()?;
        let Recursion { body, scope } = &self.recursions[recursion];
        let (body, scope) = (*body, scope.clone());
        self.capture(|this| this.for_each(body, &scope, items, state.depth + 1, Some(recursion)))
    }

    fn set(&mut self, name: &'t str, value: Value) -> Result<(), Fault> {
        self.budget.spend(SCOPE)?;
        self.scope.variables.borrow_mut().insert(name, value);
        Ok(())
    }

    fn assign(&mut self, target: &'t Expr<'t>, value: Value) -> Result<(), Fault> {
        match target {
            Expr::Var(variable) => self.set(variable.id, value),
            Expr::List(targets) => {
                let items = value.items(&self.budget)?;
                let (wanted, given) = (targets.items.len(), items.items.len());
                if wanted != given {
                    return Err(Fault::new(format!("{given} values for {wanted} variables")));
                }
                for (target, item) in targets.items.iter().zip(&items.items) {
                    self.assign(target, item.clone())?;
                }
                Ok(())
            }
            Expr::GetAttr(attribute) => {
                let Value::Namespace(number) = self.evaluate(&attribute.expr)? else {
                    return Err(Fault::new("only attributes of a namespace can be set"));
                };
                self.budget.spend(SCOPE + attribute.name.len() as u64)?;
                self.namespaces[number].insert(attribute.name.into(), value);
                Ok(())
            }
            other => Err(Fault::new(format!("cannot assign to a {}", other.description()))),
        }
    }

    /// The value of a variable.
    pub(super) fn lookup(&self, name: &str) -> Result<Value, Fault> {
        let mut scope = Some(&self.scope);
        while let Some(here) = scope {
            if let Some(value) = here.variables.borrow().get(name) {
                return Ok(value.clone());
            }
            self.budget.spend(STEP)?;
            scope = here.parent.as_ref();
        }
        Ok(Function::by_name(name).map_or(Value::Undefined, Value::Function))
    }

    fn declare(&mut self, declaration: &'t ast::Macro<'t>) -> Result<Value, Fault> {
        self.budget.spend(SCOPE)?;
        self.macros.push(Macro { declaration, scope: self.scope.clone() });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    /// Calls what `call` names; a call block gives its body along as `caller`.
    pub(super) fn call(&mut self, call: &'t ast::Call<'t>, caller: Option<Value>) -> Result<Value, Fault> {
        let (receiver, method) = match &call.expr {
            // Python finds methods before keys of the same name.
            Expr::GetAttr(attribute) => (self.evaluate(&attribute.expr)?, Some(attribute.name)),
            function => (self.evaluate(function)?, None),
        };
        let mut args = self.arguments(&call.args)?;
        if let Some(caller) = caller {
            args.named.push(("caller".into(), caller));
        }
        match (receiver, method) {
            (Value::Namespace(number), Some(name)) => {
                let function = self.namespaces[number].get(name).cloned().unwrap_or(Value::Undefined);
                self.call_value(&function, name, args)
            }
            (Value::Loop(state), Some("cycle")) => {
                self.budget.spend_slots(args.positional.len())?;
                let at = state.index.checked_rem(args.positional.len());
                Ok(at.and_then(|at| args.positional.remove(at)).unwrap_or(Value::Undefined))
            }
            (value, Some(name)) => super::methods::call(&self.budget, &value, name, &mut args),
            (function, None) => {
                let name = if let Expr::Var(variable) = &call.expr { variable.id } else { "expression" };
                self.call_value(&function, name, args)
            }
        }
    }

    fn call_value(&mut self, function: &Value, name: &str, mut args: Args) -> Result<Value, Fault> {
        match function {
            Value::Macro(number) => self.call_macro(*number, args),
            Value::Loop(state) => self.recurse(state, &mut args),
            Value::Function(function) => functions::call(self, *function, &mut args),
            Value::Undefined => Err(Fault::new(format!("`{name}` is called, but undefined"))),
            other => Err(Fault::new(format!("`{name}` is called, but a {}", other.type_name()))),
        }
    }

    /// What a macro writes.
    fn call_macro(&mut self, number: usize, mut args: Args) -> Result<Value, Fault> {
        let Macro { declaration, scope } = &self.macros[number];
        let (declaration, scope) = (*declaration, scope.clone());
        let without_default = declaration.args.len() - declaration.defaults.len();
        self.capture(|this| {
            this.scoped(scope, |this| {
                if let Some(caller) = args.named("caller") {
                    this.set("caller", caller)?;
                }
                for (at, parameter) in declaration.args.iter().enumerate() {
                    let Expr::Var(variable) = parameter else { continue };
                    let default = at.checked_sub(without_default).and_then(|at| declaration.defaults.get(at));
                    let value = match (args.next(variable.id), default) {
                        (Some(value), _) => value,
                        (None, Some(default)) => this.evaluate(default)?,
                        (None, None) => Value::Undefined,
                    };
                    this.set(variable.id, value)?;
                }
                args.finish()?;
                this.statements(&declaration.body)
            })
        })
    }

    /// Evaluates the arguments of a call.
    pub(super) fn arguments(&mut self, given: &'t [CallArg<'t>]) -> Result<Args, Fault> {
        let mut args = Args::default();
        for argument in given {
            match argument {
                CallArg::Pos(value) => args.positional.push_back(self.evaluate(value)?),
                CallArg::Kwarg(name, value) => {
                    let value = self.evaluate(value)?;
                    args.named.push(((*name).into(), value));
                }
                CallArg::PosSplat(values) => {
                    let values = self.evaluate(values)?.items(&self.budget)?;
                    self.budget.spend_slots(values.items.len())?;
                    args.positional.extend(values.items.iter().cloned());
                }
                CallArg::KwargSplat(values) => {
                    let Value::Dict(values) = self.evaluate(values)? else {
                        return Err(Fault::new("`**` needs a dict"));
                    };
                    self.budget.spend_slots(values.entries.len())?;
                    for (key, value) in &values.entries {
                        let Value::Text(name) = key.to_value() else {
                            return Err(Fault::new("`**` needs a dict whose keys are strings"));
                        };
                        args.named.push((name, value.clone()));
                    }
                }
            }
        }
        Ok(args)
    }
}
