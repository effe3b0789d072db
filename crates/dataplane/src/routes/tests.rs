//! Routes are made, kept and left alone as told.
