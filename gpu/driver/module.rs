//! Kernels: compiled at run time, loaded, and launched.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use cudarc::driver::sys;
use cudarc::nvrtc::sys as nvrtc;
use quadrille_core::plan::lanes::KernelUsage;

use super::{Gpu, Slice, Stream, check};
use crate::op::{Argument, Launch, Span, THREADS};

/// What kernels are compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code of GPUs of a compute capability, such as 90.
    Cubin(i32),
    /// PTX, which the driver compiles for GPUs of this capability and later ones.
    Ptx(i32),
}

/// The runtime compiler; having one means that the library is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiler(());

impl Compiler {
    /// Looks for it.
    ///
    /// # Errors
    /// If there is none.
    pub fn find() -> Result<Self, String> {
        // SAFETY: looks for a library and closes it again.
        match unsafe { nvrtc::is_culib_present() } {
            true => Ok(Self(())),
            false => Err("CUDA's runtime compiler (libnvrtc) was not found; it comes with the CUDA toolkit and with the \
                          Python package nvidia-cuda-nvrtc, whose folder lib belongs into LD_LIBRARY_PATH"
                .into()),
        }
    }

    /// Its version, such as 12.9.
    pub fn version(self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there; writes two numbers.
        unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// What to compile for a GPU: its machine code, or, if the compiler is older than the GPU, PTX of the latest that it
    /// knows.
    pub fn target(self, capability: i32) -> Target {
        let known = self.capabilities();
        match known.iter().copied().filter(|known| *known <= capability).max() {
            Some(latest) if latest < capability => Target::Ptx(latest),
            _ => Target::Cubin(capability),
        }
    }

    /// The compute capabilities that it compiles for.
    pub fn capabilities(self) -> Vec<i32> {
        let mut count = 0;
        // SAFETY: the library is there; writes one number.
        unsafe { nvrtc::nvrtcGetNumSupportedArchs(&mut count) };
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        if !known.is_empty() {
            // SAFETY: room for as many numbers as there are.
            unsafe { nvrtc::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
        }
        known
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// With what the compiler says of it. A bug of the program.
    pub fn compile(self, name: &str, text: &str, target: Target) -> Result<Vec<u8>, String> {
        let c_string = |text: &str| CString::new(text).map_err(|_| format!("{name} holds a 0"));
        let architecture = match target {
            Target::Cubin(capability) => format!("sm_{capability}"),
            Target::Ptx(capability) => format!("compute_{capability}"),
        };
        let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
        let options: Vec<CString> = options.iter().map(|o| c_string(o)).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let source = Source::new(&c_string(text)?, &c_string(name)?)?;
        // SAFETY: a living program; options that end with 0, as many as is said.
        let compiled =
            unsafe { nvrtc::nvrtcCompileProgram(source.0, pointers.len() as i32, pointers.as_ptr()) };
        if compiled != nvrtc::nvrtcResult::NVRTC_SUCCESS {
            return Err(format!("{name} for {architecture}: {compiled:?}\n{}", source.log()));
        }
        source.image(target).map_err(|result| format!("{name} for {architecture}: {result:?}"))
    }
}

/// A source in the compiler.
struct Source(nvrtc::nvrtcProgram);

type Size = unsafe fn(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
type Text = unsafe fn(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;

impl Source {
    fn new(text: &CString, name: &CString) -> Result<Self, String> {
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: texts that end with 0, no headers; destroyed when the value is dropped.
        let result =
            unsafe { nvrtc::nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none) };
        (result == nvrtc::nvrtcResult::NVRTC_SUCCESS)
            .then_some(Self(program))
            .ok_or_else(|| format!("{name:?}: {result:?}"))
    }

    fn bytes(&self, size: Size, text: Text) -> Result<Vec<u8>, nvrtc::nvrtcResult> {
        let mut len = 0;
        // SAFETY: a living program; writes one number.
        let sized = unsafe { size(self.0, &mut len) };
        let mut bytes = vec![0u8; len];
        // SAFETY: as many bytes as the compiler says.
        let filled = unsafe { text(self.0, bytes.as_mut_ptr().cast()) };
        let failed = [sized, filled].into_iter().find(|r| *r != nvrtc::nvrtcResult::NVRTC_SUCCESS);
        failed.map_or(Ok(bytes), Err)
    }

    fn log(&self) -> String {
        let log = self.bytes(nvrtc::nvrtcGetProgramLogSize, nvrtc::nvrtcGetProgramLog);
        String::from_utf8_lossy(&log.unwrap_or_default()).trim_end_matches('\0').to_owned()
    }

    fn image(&self, target: Target) -> Result<Vec<u8>, nvrtc::nvrtcResult> {
        match target {
            Target::Cubin(_) => self.bytes(nvrtc::nvrtcGetCUBINSize, nvrtc::nvrtcGetCUBIN),
            Target::Ptx(_) => self.bytes(nvrtc::nvrtcGetPTXSize, nvrtc::nvrtcGetPTX),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: made by `new`. Nothing can be done about a refusal.
        unsafe { nvrtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Kernels in the GPU's memory.
#[derive(Debug)]
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    raw: sys::CUmodule,
}

// SAFETY: only handed to the driver, which may be called by several threads at once.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a module, which it keeps.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    raw: sys::CUfunction,
    module: Arc<Module>,
}

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as for modules.
unsafe impl Sync for Function {}

impl Module {
    /// Loads what the compiler made: machine code, or PTX that ends with 0.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn load(gpu: &Arc<Gpu>, image: &[u8]) -> Result<Arc<Self>, String> {
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: an image as the compiler made it, whose length it holds itself.
        check(unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) }, "loading kernels")?;
        Ok(Arc::new(Self { gpu: gpu.clone(), raw }))
    }

    /// One of its kernels.
    ///
    /// # Errors
    /// If there is none by this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, String> {
        self.gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        let c_name = CString::new(name).map_err(|_| format!("{name:?} holds a 0"))?;
        // SAFETY: a living module, a name that ends with 0.
        let result = unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, c_name.as_ptr()) };
        check(result, name)?;
        Ok(Function { raw, module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: loaded by `load`. Nothing can be done about a refusal.
            unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// Most words that the arguments of a launch take, and most arguments.
const WORDS: usize = 64;
const ARGUMENTS: usize = 24;

/// A launch with all its arguments, ready to be put into a stream.
#[derive(Debug)]
pub(crate) struct Prepared {
    kernel: &'static str,
    function: Function,
    grid: [u32; 3],
    /// The arguments, each from a word of its own on.
    words: Vec<u64>,
    /// Where each argument begins.
    starts: Vec<usize>,
    /// Arguments in the lane's workspace: the word, first element and length.
    workspaces: Vec<(usize, usize, usize)>,
}

impl Prepared {
    /// `launch` of `function`, whose arguments were checked; `resolve` says where an array of the arena lies.
    ///
    /// # Errors
    /// If there are more arguments than any kernel takes. A bug of the program.
    pub fn new(function: Function, launch: &Launch, resolve: impl Fn(Span) -> Slice) -> Result<Self, String> {
        let Launch { kernel, grid, arguments } = launch;
        let mut prepared = Self {
            kernel,
            function,
            grid: *grid,
            words: Vec::new(),
            starts: Vec::new(),
            workspaces: Vec::new(),
        };
        for argument in arguments {
            prepared.starts.push(prepared.words.len());
            prepared.push(argument, &resolve);
        }
        let fits = prepared.words.len() <= WORDS && prepared.starts.len() <= ARGUMENTS;
        fits.then_some(prepared).ok_or_else(|| format!("{kernel} has too many arguments"))
    }

    /// Appends an argument as it lies in memory: little end first, as on every host with such a GPU.
    fn push(&mut self, argument: &Argument, resolve: impl Fn(Span) -> Slice) {
        match argument {
            Argument::Array(span) if span.workspace => {
                self.workspaces.push((self.words.len(), span.start, span.len));
                self.words.push(0);
            }
            Argument::Array(span) => self.words.push(resolve(*span).address),
            Argument::Missing => self.words.push(0),
            Argument::Int(value) => self.words.push(u64::from(*value as u32)),
            Argument::Word(value) => self.words.push(u64::from(*value)),
            Argument::Float(value) => self.words.push(u64::from(value.to_bits())),
            Argument::Struct(values) => {
                let word = |pair: &[i32]| {
                    let high = pair.get(1).copied().unwrap_or(0);
                    u64::from(high as u32) << 32 | u64::from(pair[0] as u32)
                };
                self.words.extend(values.chunks(2).map(word));
            }
        }
    }

    /// What the launch uses, where it takes so long alone.
    ///
    /// # Errors
    /// If the driver does not say it.
    pub fn usage(&self, nanoseconds: f64) -> Result<KernelUsage, String> {
        use sys::CUfunction_attribute_enum as Attribute;
        let of = |attribute| {
            let mut value = 0;
            // SAFETY: a kernel of a loaded module; writes one number.
            let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, self.function.raw) };
            check(result, "an attribute of a kernel").map(|()| value.unsigned_abs())
        };
        self.function.module.gpu.enter()?;
        Ok(KernelUsage {
            name: self.kernel.to_owned(),
            blocks: self.grid.iter().map(|extent| u64::from(*extent)).product(),
            threads: THREADS as u32,
            registers: of(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared: of(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?.into(),
            nanoseconds,
        })
    }

    /// Puts the launch into a stream whose lane has this workspace.
    ///
    /// # Panics
    /// If the workspace is shorter than the kernel needs.
    ///
    /// # Errors
    /// If the driver refuses it, or something failed before.
    pub fn launch(&self, stream: &Stream, workspace: Slice) -> Result<(), String> {
        let mut words = [0u64; WORDS];
        words[..self.words.len()].copy_from_slice(&self.words);
        for (word, start, len) in &self.workspaces {
            words[*word] = workspace.part(*start, *len).address;
        }
        let mut arguments = [std::ptr::null_mut::<c_void>(); ARGUMENTS];
        for (argument, start) in arguments.iter_mut().zip(&self.starts) {
            *argument = (&raw mut words[*start]).cast();
        }
        let ([x, y, z], threads, none) = (self.grid, THREADS as u32, std::ptr::null_mut());
        stream.gpu().enter()?;
        // SAFETY: a kernel of a loaded module, with arguments that fit its parameters and live until the call returns; the
        // driver copies them. What the kernel does with its arrays is as the module's rules say.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.function.raw,
                x,
                y,
                z,
                threads,
                1,
                1,
                0,
                stream.raw,
                arguments.as_mut_ptr(),
                none,
            )
        };
        check(result, "launching a kernel")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::source::{COMMON, SOURCES};

    /// The compiler that `scripts/setup --nvrtc` has put beside the build: it is loaded here, and so found by its name.
    fn compiler() -> Result<Compiler, String> {
        if let Ok(compiler) = Compiler::find() {
            return Ok(compiler);
        }
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let folders = program.ancestors().map(|folder| folder.join("nvrtc"));
        let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let is_it = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with("libnvrtc.so")
        };
        let library = files.map(|file| file.path()).find(is_it);
        let library = library.ok_or("there is no compiler (libnvrtc); scripts/setup --nvrtc fetches it")?;
        // SAFETY: NVIDIA's library, whose start does nothing but prepare it.
        let library = unsafe { libloading::Library::new(library) }.map_err(|error| error.to_string())?;
        // It stays for the rest of the process.
        std::mem::forget(library);
        Compiler::find()
    }

    /// Volta, Ampere and Hopper, in PTX, which needs no GPU.
    #[test]
    fn every_source_compiles_for_every_generation() {
        let compiler = match compiler() {
            Ok(compiler) => compiler,
            Err(reason) => {
                println!("skipped: every source compiles for every generation: {reason}");
                return;
            }
        };
        let known = compiler.capabilities();
        for capability in [70, 80, 90] {
            if !known.contains(&capability) {
                println!(
                    "skipped: kernels for {capability}: NVRTC {} no longer knows it",
                    compiler.version()
                );
                continue;
            }
            for (name, text) in SOURCES {
                let text = format!("{COMMON}{text}");
                for target in [Target::Ptx(capability), Target::Cubin(capability)] {
                    let image = compiler.compile(name, &text, target);
                    let image = image.unwrap_or_else(|reason| panic!("{reason}"));
                    let is_ptx = image.windows(7).any(|window| window == b".target");
                    assert_eq!(is_ptx, matches!(target, Target::Ptx(_)), "{name} for {target:?}");
                }
            }
        }
        assert_eq!(compiler.target(90), Target::Cubin(90));
        assert_eq!(compiler.target(9999), Target::Ptx(known.iter().copied().max().unwrap_or(0)));
        let wrong =
            compiler.compile("wrong.cu", "extern \"C\" __global__ void f() { g(); }", Target::Ptx(90));
        assert!(wrong.is_err_and(|said| said.contains("wrong.cu") && said.contains('g')));
    }
}
