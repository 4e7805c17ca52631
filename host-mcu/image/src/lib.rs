//! What the images share: the board, the logger, the sizes, the measuring of stack and instructions.
#![no_std]

pub mod board;
mod logger;
pub mod sizes;
pub mod stack;
