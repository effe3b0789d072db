mod fixture;
mod flips;
mod property;
mod restarts;
