//! Matrix products straight over the file's encoding.

mod operand;
mod panel;
mod product;
mod stripe;

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use shamrock_cmf::Encoding;
use shamrock_model::Result;
use shamrock_model::weights::{Matrix, Weights};

use crate::Precision;
use crate::kernel::{BAND, Columns, Isa};
use crate::pool::Pool;
use operand::{Quantised, RowsOf};
use panel::{Panel, Stored};
pub(crate) use product::{Scratch, Source};
pub(crate) use stripe::Stripe;

/// Weight rows of a task: enough work to be worth handing out, few enough to balance, and they stay in
/// second-level cache while blocks of activation rows go by.
const TASK_ROWS: usize = 4 * BAND;
/// Activation rows that stay in second-level cache while a task's weights go by.
pub(crate) const ROW_BLOCK: usize = 64;

/// Values from which on many small forms are rounded on all threads.
const ROUND_TOGETHER: usize = 1 << 15;
/// Small forms that make a task.
const FORMS_PER_TASK: usize = 4;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A matrix and rows to multiply it with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product<'a> {
    /// The matrix.
    pub(crate) matrix: Matrix,
    /// `[_, cols]`.
    pub(crate) x: &'a [f32],
    /// Which rows of `x`, or all of them.
    pub(crate) picked: Option<&'a [u32]>,
}

impl<'a> From<(Matrix, &'a [f32])> for Product<'a> {
    fn from((matrix, x): (Matrix, &'a [f32])) -> Self {
        Product { matrix, x, picked: None }
    }
}

/// Rows to be rounded in one way.
struct Form<'a> {
    x: RowsOf<'a>,
    columns: Columns,
    factors: Option<&'a [f32]>,
}

impl Form<'_> {
    /// Whether this one does for `other` too.
    fn serves(&self, other: &Form<'_>) -> bool {
        let plain = self.factors.is_none() && other.factors.is_none();
        plain && self.columns == other.columns && std::ptr::eq(self.x.x, other.x.x)
    }
}

/// Column factors of a model's matrices, one place for each tensor: decoded when they are first used and
/// kept, 4 bytes a column.
pub(crate) struct Factors(Vec<OnceLock<Vec<f32>>>);

impl Factors {
    /// None yet.
    pub(crate) fn of(weights: &Weights) -> Self {
        Factors(weights.container().tensors().map(|_| OnceLock::new()).collect())
    }
}

/// A model's weights, with a count of the bytes read from them.
pub(crate) struct Linear<'a> {
    weights: &'a Weights,
    factors: &'a Factors,
    precision: Precision,
    isa: Isa,
    pool: &'a Pool,
    bytes: AtomicU64,
}

impl<'a> Linear<'a> {
    /// Products over `weights`.
    pub(crate) fn new(
        weights: &'a Weights,
        factors: &'a Factors,
        precision: Precision,
        isa: Isa,
        pool: &'a Pool,
    ) -> Self {
        Linear { weights, factors, precision, isa, pool, bytes: AtomicU64::new(0) }
    }

    /// Instruction set in use.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads in use.
    pub(crate) fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Bytes of weights read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// `x Wᵀ`: `x` is `[n, cols]`, the result `[n, rows]`.
    ///
    /// # Errors
    /// If a payload does not have the size of its shape.
    pub(crate) fn project(&self, matrix: Matrix, x: &[f32]) -> Result<Vec<f32>> {
        let [out] = self.project_all([(matrix, x)])?;
        Ok(out)
    }

    /// Several products at once, their tasks spread over the threads together.
    ///
    /// # Errors
    /// If a payload does not have the size of its shape.
    pub(crate) fn project_all<const N: usize>(
        &self,
        products: [(Matrix, &[f32]); N],
    ) -> Result<[Vec<f32>; N]> {
        let sources = self.prepare(&products.map(Product::from))?;
        let mut results = products.map(|(matrix, x)| vec![0.0; x.len() / matrix.cols * matrix.rows]);
        let mut tasks = Vec::new();
        for (((matrix, _), source), out) in products.iter().zip(&sources).zip(&mut results) {
            if !out.is_empty() {
                tasks.extend(Stripe::split(out, matrix.rows, TASK_ROWS).into_iter().map(|s| (source, s)));
            }
        }
        self.tasks(tasks, |scratch, (source, mut stripe)| {
            let mut products = vec![[0.0; BAND]; source.rows().min(ROW_BLOCK)];
            source.prefetch(stripe.first());
            for first in (0..source.rows()).step_by(ROW_BLOCK) {
                let rows = first..source.rows().min(first + ROW_BLOCK);
                for at in (0..stripe.columns()).step_by(BAND) {
                    let products = &mut products[..rows.len()];
                    let columns = at..stripe.columns().min(at + BAND);
                    let next = if columns.end < stripe.columns() {
                        source.weights(stripe.first() + columns.end)
                    } else {
                        &[]
                    };
                    source.band(self.isa, stripe.first() + at, rows.clone(), scratch, next, products)?;
                    for (row, products) in rows.clone().zip(products) {
                        stripe.row(row)[columns.clone()].copy_from_slice(&products[..columns.len()]);
                    }
                }
            }
            Ok(())
        })?;
        Ok(results)
    }

    /// Runs tasks on all threads, each with its thread's scratch.
    ///
    /// # Errors
    /// One of the tasks' errors.
    pub(crate) fn tasks<T: Send>(
        &self,
        tasks: Vec<T>,
        work: impl Fn(&mut Scratch, T) -> Result<()> + Sync,
    ) -> Result<()> {
        let failure = Mutex::new(Ok(()));
        self.pool.for_each(tasks, |task| {
            let result = SCRATCH.with_borrow_mut(|scratch| work(scratch, task));
            if let (Err(_), Ok(mut failure)) = (&result, failure.lock()) {
                *failure = result;
            }
        });
        failure.into_inner().unwrap_or(Ok(()))
    }

    /// Pairs each matrix with its rows in the form it wants. Products over the same rows share a form
    /// where they can, whichever rows they pick.
    ///
    /// # Errors
    /// If a payload does not have the size of its shape.
    pub(crate) fn prepare<'s>(&self, products: &[Product<'s>]) -> Result<Vec<Source<'s>>>
    where
        'a: 's,
    {
        let mut panels = Vec::with_capacity(products.len());
        for &Product { matrix, x, picked } in products {
            let tensor = self.weights.tensor(matrix);
            let Matrix { rows, cols, .. } = matrix;
            let x = RowsOf { x, cols, picked };
            if x.len() > 0 {
                self.bytes.fetch_add(tensor.bytes.len() as u64, Ordering::Relaxed);
            }
            let stored = Stored { encoding: tensor.encoding, rows, cols, bytes: tensor.bytes };
            let panel = match self.precision {
                Precision::F32 => None,
                Precision::Int8 => Panel::new(&stored, self.factors.0.get(matrix.id.index()))?,
            };
            panels.push((stored, panel, x));
        }
        // Each panel's form by its number; a form without column factors serves all panels over its rows.
        let mut forms: Vec<Form<'_>> = Vec::new();
        let mut form_of = Vec::with_capacity(panels.len());
        for (_, panel, x) in &panels {
            form_of.push(panel.as_ref().map(|panel| {
                let (columns, factors) = (panel.columns(), panel.factors());
                let x = if factors.is_some() { *x } else { RowsOf::all(x.x, x.cols) };
                let form = Form { x, columns, factors };
                forms.iter().rposition(|known| known.serves(&form)).unwrap_or_else(|| {
                    forms.push(form);
                    forms.len() - 1
                })
            }));
        }
        let rounded = self.round(&forms);
        let sources = panels.into_iter().zip(form_of).map(|((stored, panel, x), form)| match (panel, form) {
            (Some(panel), Some(form)) => {
                let own_rows = panel.factors().is_some() || x.picked.is_none();
                let form = rounded[form].clone();
                let picked = match x.picked.filter(|_| !own_rows) {
                    Some(picked) => Cow::Borrowed(picked),
                    None => (0..form.rows() as u32).collect(),
                };
                Source::Rounded { panel, x: form, picked }
            }
            _ => Source::exact(stored, x),
        });
        Ok(sources.collect())
    }

    /// Rounds the rows of each form, on all threads where there is enough to do.
    fn round(&self, forms: &[Form<'_>]) -> Vec<Arc<Quantised>> {
        let round = |form: &Form<'_>| {
            Arc::new(Quantised::new(self.isa, self.pool, form.x, form.columns, form.factors))
        };
        let values: usize = forms.iter().map(|form| form.x.len() * form.x.cols).sum();
        if forms.len() < 2 * self.pool.threads() || values < ROUND_TOGETHER {
            return forms.iter().map(round).collect();
        }
        let mut rounded = vec![None; forms.len()];
        self.pool.for_chunks(&mut rounded, FORMS_PER_TASK, |task, rounded| {
            for (rounded, form) in rounded.iter_mut().zip(&forms[task * FORMS_PER_TASK..]) {
                *rounded = Some(round(form));
            }
        });
        rounded.into_iter().flatten().collect()
    }

    /// Rows `ids` of a matrix: `[ids.len(), cols]`.
    ///
    /// # Errors
    /// If the payload does not have the size of its shape.
    pub(crate) fn gather(&self, matrix: Matrix, ids: &[u32]) -> Result<Vec<f32>> {
        let tensor = self.weights.tensor(matrix);
        let row_bytes = tensor.bytes.len() / matrix.rows;
        self.bytes.fetch_add((row_bytes * ids.len()) as u64, Ordering::Relaxed);
        let mut out = vec![0.0; ids.len() * matrix.cols];
        for (&id, row) in ids.iter().zip(out.chunks_exact_mut(matrix.cols)) {
            tensor.decode_rows(id as usize..id as usize + 1, row)?;
        }
        Ok(out)
    }
}

/// Both sides of a product outside a model, for tests and benches.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// How the matrix is stored.
    pub encoding: Encoding,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// The matrix.
    pub payload: &'a [u8],
    /// `[n, cols]`.
    pub x: &'a [f32],
}

/// `x Wᵀ` with rounded activations on this thread: `[n, rows]`.
///
/// # Errors
/// If the payload does not have the size of its shape, or a thread pool cannot be made.
pub fn product(isa: Isa, operands: Operands<'_>) -> Result<Vec<f32>> {
    let Operands { encoding, rows, cols, payload, x } = operands;
    let stored = Stored { encoding, rows, cols, bytes: payload };
    let n = x.len() / cols;
    let source = match Panel::new(&stored, None)? {
        Some(panel) => {
            let x = RowsOf::all(x, cols);
            let x = Quantised::new(isa, &Pool::alone(), x, panel.columns(), panel.factors());
            Source::Rounded { panel, x: Arc::new(x), picked: (0..n as u32).collect() }
        }
        None => Source::exact(stored, RowsOf::all(x, cols)),
    };
    let mut out = vec![0.0; rows * n];
    let mut products = vec![[0.0; BAND]; n];
    let mut scratch = Scratch::default();
    for first in (0..rows).step_by(BAND) {
        source.band(isa, first, 0..n, &mut scratch, source.weights(first + BAND), &mut products)?;
        let columns = first..rows.min(first + BAND);
        for (out, products) in out.chunks_exact_mut(rows).zip(&products) {
            out[columns.clone()].copy_from_slice(&products[..columns.len()]);
        }
    }
    Ok(out)
}
