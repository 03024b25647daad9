//! Expressions.

use std::cmp::Ordering;

use indexmap::IndexMap;
use minijinja::machinery::ast::{self, BinOpKind, CompareOpKind, Expr, UnaryOpKind};
use minijinja::value::ValueKind;

use super::args::Args;
use super::budget::Fault;
use super::format::{Style, format};
use super::interpreter::Interpreter;
use super::operators::{Arithmetic, compare, contains, equal, item, negate, slice};
use super::value::Value;
use super::{filters, tests};
use crate::error::one_line;

impl<'t> Interpreter<'t> {
    /// The value of an expression.
    pub(super) fn evaluate(&mut self, expression: &'t Expr<'t>) -> Result<Value, Fault> {
        self.deeper(expression.span().start_line, |this| this.evaluate_at_depth(expression))
    }

    fn evaluate_at_depth(&mut self, expression: &'t Expr<'t>) -> Result<Value, Fault> {
        match expression {
            Expr::Var(variable) => self.lookup(variable.id),
            Expr::Const(constant) => self.constant(&constant.value),
            Expr::List(list) => {
                let items = self.evaluate_all(&list.items)?;
                self.budget.list(items)
            }
            Expr::Tuple(tuple) => {
                let items = self.evaluate_all(&tuple.items)?;
                self.budget.tuple(items)
            }
            Expr::Map(map) => {
                let mut entries = IndexMap::new();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = self.evaluate(key)?;
                    self.budget.spend_walk(&key)?;
                    let Some(key) = key.as_key() else {
                        return Err(Fault::new(format!("a {} is no key of a dict", key.type_name())));
                    };
                    entries.insert(key, self.evaluate(value)?);
                }
                self.budget.dict(entries)
            }
            Expr::GetAttr(attribute) => match self.evaluate(&attribute.expr)? {
                Value::Namespace(number) => {
                    let found = self.namespaces[number].get(attribute.name);
                    Ok(found.cloned().unwrap_or(Value::Undefined))
                }
                value => value.attribute(attribute.name, &self.budget),
            },
            Expr::GetItem(get) => {
                let container = self.evaluate(&get.expr)?;
                let key = self.evaluate(&get.subscript_expr)?;
                match (&container, &key) {
                    (Value::Namespace(number), Value::Text(name)) => {
                        self.budget.spend(name.len() as u64)?;
                        Ok(self.namespaces[*number].get(name).cloned().unwrap_or(Value::Undefined))
                    }
                    _ => item(&container, &key, &self.budget),
                }
            }
            Expr::Slice(bounds) => self.slice(bounds),
            Expr::UnaryOp(operation) => {
                let value = self.evaluate(&operation.expr)?;
                match operation.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => negate(&value),
                }
            }
            Expr::BinOp(operation) => self.binary(operation),
            Expr::Compare(chain) => {
                let mut left = self.evaluate(&chain.expr)?;
                for link in &chain.ops {
                    let right = self.evaluate(&link.expr)?;
                    if !self.comparison(link.op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::IfExpr(choice) => {
                if self.evaluate(&choice.test_expr)?.is_true() {
                    self.evaluate(&choice.true_expr)
                } else {
                    choice.false_expr.as_ref().map_or(Ok(Value::Undefined), |other| self.evaluate(other))
                }
            }
            Expr::Filter(_) => self.filter_chain(expression, Value::Undefined),
            Expr::Test(test) => {
                let value = self.evaluate(&test.expr)?;
                let mut args = self.arguments(&test.args)?;
                tests::passes(&self.budget, test.name, &value, &mut args).map(Value::Bool)
            }
            Expr::Call(call) => self.call(call, None),
        }
    }

    fn evaluate_all(&mut self, expressions: &'t [Expr<'t>]) -> Result<Vec<Value>, Fault> {
        expressions.iter().map(|expression| self.evaluate(expression)).collect()
    }

    /// Applies filters. The innermost of a block's has no expression; it works on `input`.
    pub(super) fn filter_chain(&mut self, chain: &'t Expr<'t>, input: Value) -> Result<Value, Fault> {
        let Expr::Filter(filter) = chain else { return self.evaluate(chain) };
        self.deeper(filter.span().start_line, |this| {
            let value = match &filter.expr {
                Some(inner) => this.filter_chain(inner, input)?,
                None => input,
            };
            let mut args = this.arguments(&filter.args)?;
            filters::apply(&this.budget, filter.name, &value, &mut args)
        })
    }

    fn constant(&self, value: &minijinja::Value) -> Result<Value, Fault> {
        let unfit = |error: minijinja::Error| Fault::new(one_line(error));
        match value.kind() {
            ValueKind::None => Ok(Value::None),
            ValueKind::Bool => Ok(Value::Bool(value.is_true())),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).map(Value::Int).map_err(unfit)
            }
            ValueKind::Number => f64::try_from(value.clone()).map(Value::Float).map_err(unfit),
            _ => self.budget.text(value.as_str().unwrap_or_default()),
        }
    }

    fn slice(&mut self, bounds: &'t ast::Slice<'t>) -> Result<Value, Fault> {
        let container = self.evaluate(&bounds.expr)?;
        let mut bound = |expression: &'t Option<Expr<'t>>| {
            let Some(expression) = expression else { return Ok(None) };
            match self.evaluate(expression)? {
                Value::None => Ok(None),
                // A bound beyond 64 bits is as good as the largest that fits.
                value => match value.as_int() {
                    Some(i) => Ok(Some(i.clamp(i64::MIN.into(), i64::MAX.into()) as i64)),
                    None => Err(Fault::new(format!("a slice bound is a {}", value.type_name()))),
                },
            }
        };
        let bounds = [bound(&bounds.start)?, bound(&bounds.stop)?, bound(&bounds.step)?];
        slice(&container, bounds, &self.budget)
    }

    fn binary(&mut self, operation: &'t ast::BinOp<'t>) -> Result<Value, Fault> {
        let left = self.evaluate(&operation.left)?;
        match operation.op {
            BinOpKind::ScAnd if !left.is_true() => return Ok(left),
            BinOpKind::ScOr if left.is_true() => return Ok(left),
            _ => {}
        }
        let right = self.evaluate(&operation.right)?;
        let arithmetic = match operation.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => return Ok(right),
            BinOpKind::Eq => return self.comparison(CompareOpKind::Eq, &left, &right).map(Value::Bool),
            BinOpKind::Ne => return self.comparison(CompareOpKind::Ne, &left, &right).map(Value::Bool),
            BinOpKind::Lt => return self.comparison(CompareOpKind::Lt, &left, &right).map(Value::Bool),
            BinOpKind::Lte => return self.comparison(CompareOpKind::Lte, &left, &right).map(Value::Bool),
            BinOpKind::Gt => return self.comparison(CompareOpKind::Gt, &left, &right).map(Value::Bool),
            BinOpKind::Gte => return self.comparison(CompareOpKind::Gte, &left, &right).map(Value::Bool),
            BinOpKind::In => return self.comparison(CompareOpKind::In, &left, &right).map(Value::Bool),
            BinOpKind::Concat => {
                let text = left.print(&self.budget)? + &right.print(&self.budget)?;
                return self.budget.text(text);
            }
            BinOpKind::Add => Arithmetic::Add,
            BinOpKind::Sub => Arithmetic::Sub,
            BinOpKind::Mul => Arithmetic::Mul,
            BinOpKind::Div => Arithmetic::Div,
            BinOpKind::FloorDiv => Arithmetic::FloorDiv,
            BinOpKind::Rem => Arithmetic::Rem,
            BinOpKind::Pow => Arithmetic::Pow,
        };
        if let (Arithmetic::Rem, Value::Text(text)) = (arithmetic, &left) {
            let mut args = Args::default();
            match right {
                Value::List(list) if list.is_tuple => {
                    self.budget.spend_slots(list.items.len())?;
                    args.positional.extend(list.items.iter().cloned());
                }
                value => args.positional.push_back(value),
            }
            return format(&self.budget, Style::Percent, text, args);
        }
        arithmetic.apply(&left, &right, &self.budget)
    }

    fn comparison(&self, operator: CompareOpKind, left: &Value, right: &Value) -> Result<bool, Fault> {
        let budget = &self.budget;
        Ok(match operator {
            CompareOpKind::Eq => equal(left, right, budget)?,
            CompareOpKind::Ne => !equal(left, right, budget)?,
            CompareOpKind::Lt => compare(left, right, budget)? == Ordering::Less,
            CompareOpKind::Lte => compare(left, right, budget)? != Ordering::Greater,
            CompareOpKind::Gt => compare(left, right, budget)? == Ordering::Greater,
            CompareOpKind::Gte => compare(left, right, budget)? != Ordering::Less,
            CompareOpKind::In => contains(right, left, budget)?,
            CompareOpKind::NotIn => !contains(right, left, budget)?,
        })
    }
}
