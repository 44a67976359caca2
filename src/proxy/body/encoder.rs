//! Encoders of one stream each: gzip, brotli and Zstandard, with at most [`Encoder::memory`] bytes. Must not know bodies.

use brotli::enc::encode::{
    BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};
use brotli::enc::{BrotliAlloc, StandardAlloc};
use flate2::{Compress, Compression, FlushCompress, Status};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use crate::ir::compression::{Encoding, Level};

/// What an encoder has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Take input. It may keep all of it.
    Process,
    /// Return all that was taken, without ending the stream.
    Flush,
    /// End the stream.
    Finish,
}

/// What an encoder has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Bytes of input that were taken.
    pub(super) taken: usize,
    /// Bytes of output.
    pub(super) written: usize,
    /// Whether a flush or the end of the stream is complete.
    pub(super) is_complete: bool,
}

/// An encoder has failed, such as for want of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response cannot be compressed")]
pub(super) struct EncoderFailure;

/// An encoder of one stream.
pub(super) enum Encoder {
    Zstd(CCtx<'static>),
    Brotli(Box<Brotli<StandardAlloc>>),
    Gzip(Compress),
}

impl Encoder {
    /// Creates an encoder. `size` is the size of the whole input, if it is known.
    pub(super) fn new(
        encoding: Encoding,
        level: Level,
        size: Option<u64>,
    ) -> Result<Self, EncoderFailure> {
        Ok(match encoding {
            Encoding::Zstd => Self::Zstd(zstd(level, size)?),
            Encoding::Brotli => {
                Self::Brotli(Box::new(Brotli::new(level, StandardAlloc::default())))
            }
            Encoding::Gzip => {
                let level = match level {
                    Level::Fast => 1,
                    Level::Default => 4,
                    Level::Best => 9,
                };
                Self::Gzip(Compress::new_gzip(Compression::new(level), 15))
            }
        })
    }

    /// Maximum memory of an encoder.
    pub(super) fn memory(encoding: Encoding) -> usize {
        match encoding {
            Encoding::Zstd | Encoding::Brotli => 1024 * 1024,
            Encoding::Gzip => 384 * 1024,
        }
    }

    /// Takes input and returns output. An operation other than `Process` is repeated until it is complete.
    pub(super) fn step(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Step, EncoderFailure> {
        match self {
            Self::Zstd(encoder) => zstd_step(encoder, operation, input, output),
            Self::Brotli(encoder) => encoder.step(operation, input, output),
            Self::Gzip(encoder) => gzip_step(encoder, operation, input, output),
        }
    }
}

/// Windows of 128 KiB with tables of 64 KiB and less, or of 64 KiB with larger tables: browsers take more, but not the
/// budget of a stream.
fn zstd(level: Level, size: Option<u64>) -> Result<CCtx<'static>, EncoderFailure> {
    let (level, window, table) = match level {
        Level::Fast => (1, 17, 14),
        Level::Default => (3, 17, 14),
        Level::Best => (6, 16, 15),
    };
    let mut encoder = CCtx::try_create().ok_or(EncoderFailure)?;
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::WindowLog(window),
        CParameter::HashLog(table),
        CParameter::ChainLog(table),
    ] {
        encoder
            .set_parameter(parameter)
            .map_err(|_| EncoderFailure)?;
    }
    // Small responses get small tables.
    encoder
        .set_pledged_src_size(size)
        .map_err(|_| EncoderFailure)?;
    Ok(encoder)
}

fn zstd_step(
    encoder: &mut CCtx<'_>,
    operation: Operation,
    input: &[u8],
    output: &mut [u8],
) -> Result<Step, EncoderFailure> {
    let directive = match operation {
        Operation::Process => ZSTD_EndDirective::ZSTD_e_continue,
        Operation::Flush => ZSTD_EndDirective::ZSTD_e_flush,
        Operation::Finish => ZSTD_EndDirective::ZSTD_e_end,
    };
    let mut input = InBuffer::around(input);
    let mut output = OutBuffer::around(output);
    let left = encoder.compress_stream2(&mut output, &mut input, directive);
    let left = left.map_err(|_| EncoderFailure)?;
    Ok(Step {
        taken: input.pos(),
        written: output.pos(),
        is_complete: left == 0,
    })
}

fn gzip_step(
    encoder: &mut Compress,
    operation: Operation,
    input: &[u8],
    output: &mut [u8],
) -> Result<Step, EncoderFailure> {
    let flush = match operation {
        Operation::Process => FlushCompress::None,
        Operation::Flush => FlushCompress::Sync,
        Operation::Finish => FlushCompress::Finish,
    };
    let before = (encoder.total_in(), encoder.total_out());
    let status = encoder
        .compress(input, output, flush)
        .map_err(|_| EncoderFailure)?;
    let count = |after: u64, before: u64| usize::try_from(after - before);
    let taken = count(encoder.total_in(), before.0).map_err(|_| EncoderFailure)?;
    let written = count(encoder.total_out(), before.1).map_err(|_| EncoderFailure)?;
    Ok(Step {
        taken,
        written,
        is_complete: match operation {
            Operation::Finish => status == Status::StreamEnd,
            Operation::Process | Operation::Flush => written < output.len(),
        },
    })
}

/// Brotli keeps what it will write until a block is full. To bound that, blocks end after a number of bytes.
pub(super) struct Brotli<A: BrotliAlloc> {
    encoder: BrotliEncoderStateStruct<A>,
    /// Maximum bytes of a block.
    max_block: usize,
    /// Bytes of the current block.
    block: usize,
    /// Whether the block is being ended.
    is_ending: bool,
}

impl<A: BrotliAlloc> Brotli<A> {
    fn new(level: Level, allocator: A) -> Self {
        let (quality, window, max_block) = match level {
            Level::Fast => (2, 16, 32 * 1024),
            Level::Default => (3, 17, 32 * 1024),
            Level::Best => (4, 16, 16 * 1024),
        };
        let mut encoder = BrotliEncoderStateStruct::new(allocator);
        for (parameter, value) in [
            (BrotliEncoderParameter::BROTLI_PARAM_QUALITY, quality),
            (BrotliEncoderParameter::BROTLI_PARAM_LGWIN, window),
            (BrotliEncoderParameter::BROTLI_PARAM_LGBLOCK, 16),
        ] {
            encoder.set_parameter(parameter, value);
        }
        Self {
            encoder,
            max_block,
            block: 0,
            is_ending: false,
        }
    }

    fn step(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Step, EncoderFailure> {
        let (mut taken, mut written) = (0, 0);
        if self.is_ending {
            written = self.run(Operation::Flush, &[], output)?.written;
        }
        if !self.is_ending {
            let part = &input[..input.len().min(self.max_block - self.block)];
            let is_all = part.len() == input.len();
            // The end of the input is not yet the end of this part of it.
            let operation = if is_all {
                operation
            } else {
                Operation::Process
            };
            let step = self.run(operation, part, &mut output[written..])?;
            (taken, written) = (step.taken, written + step.written);
            if operation != Operation::Process {
                return Ok(Step {
                    taken,
                    written,
                    is_complete: step.is_complete,
                });
            }
            self.block += taken;
            self.is_ending = self.block >= self.max_block;
        }
        Ok(Step {
            taken,
            written,
            is_complete: false,
        })
    }

    fn run(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Step, EncoderFailure> {
        let (mut available, mut taken) = (input.len(), 0);
        let (mut room, mut written) = (output.len(), 0);
        let succeeded = self.encoder.compress_stream(
            match operation {
                Operation::Process => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
                Operation::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
                Operation::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
            },
            &mut available,
            input,
            &mut taken,
            &mut room,
            output,
            &mut written,
            &mut None,
            &mut |_, _, _, _| (),
        );
        if !succeeded {
            return Err(EncoderFailure);
        }
        let is_complete = taken == input.len()
            && match operation {
                Operation::Finish => self.encoder.is_finished(),
                Operation::Process | Operation::Flush => !self.encoder.has_more_output(),
            };
        if operation == Operation::Flush && is_complete {
            self.block = 0;
            self.is_ending = false;
        }
        Ok(Step {
            taken,
            written,
            is_complete,
        })
    }
}

#[cfg(test)]
mod tests;
