// Package history records what the clients of a robustness test did and saw: each
// operation with the times of its call and its return, each watch with its events.
//
// Times are those of one monotonic clock, since the recorder was made. An operation
// took effect, if it did, between its Begin and its End.
package history
