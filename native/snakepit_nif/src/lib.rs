//! The BEAM's door into `snakepit_core`: decode, call, encode. Nothing else lives here.
