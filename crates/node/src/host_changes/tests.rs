mod fixture;
mod flips;
mod measured;
mod property;
mod restarts;
