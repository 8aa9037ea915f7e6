// Package history serves the group history.byre.dev: the resource changes, which has one item
// for each revision that the store still has. docs/history.md is its manual.
//
// Items are not stored. A request reads changes of the store, leaves out what its user may not
// see (changes.Rights), and makes an item of each that is left.
//
// Invariant: no item, and nothing in an error, depends on a change that the user may not see, except
// for how many changes a request has examined, and since when there is history. changes.Rights
// decides for each change, after it was read and before anything is made of it; a change that does
// not exist and one that may not be seen are answered alike.
//
// The tail reads each change once for all watches of the process, while there are any; a watch
// that is behind the tail reads from the database by itself.
//
// The caller runs Storage.Run while watches are served. It cancels Run's context before the
// feed's and before it closes the driver; Run then ends the watches, and joins their goroutines.
//
// client.go is what clients of the resource share, the console and the commands of byre: Search finds the newest
// changes, and Diff compares two versions of an object. A Timeline finds what has changed around an object: the
// changes (timeline.go), why they are related (timeline_relations.go), and what is shown of them (timeline_rows.go).
// They use the API only.
package history
