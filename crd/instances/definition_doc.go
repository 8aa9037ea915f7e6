// Package definition interprets a CustomResourceDefinition, without a server: which
// requests it serves, which resources discovery lists, and what a change of it means for
// the handlers of its instances. It does no I/O, starts no goroutine and takes no lock.
//
// # What is promised
//
//   - A Definition is one state of a CustomResourceDefinition and never changes. It is
//     stripped of its schemas: thousands of definitions are in memory at all times, and
//     their schemas are needed only where instances are decoded. A Source decodes them.
//   - A Table holds the newest state of each definition. It never goes back: a state
//     that arrives late is dropped. Every call that changes it returns the Change, from
//     which alone the layers above derive what to do.
package instances
