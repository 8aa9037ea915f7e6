// Package transcode reads the JSON of stored objects without making the objects. A Message converts
// the JSON of a typed API object to protobuf: to the bytes that the object's generated Marshal method
// returns. A Scanner and an Extractor read parts of the JSON as they are written.
//
// # Protobuf from JSON
//
// What upstream does: it decodes the stored bytes into an object, converts the object
// to the requested version and calls the object's Marshal method.
//
// What is done instead: where the stored JSON is already in the requested version, each
// member is copied to the protobuf field that the tags of the Go type name.
//
// What it relies on: encoding/json has written the stored JSON from the same Go type,
// and generated Marshal methods follow the rules in message.go.
// TestTranscode_EqualsUpstreamForEveryBuiltInType compares the bytes with upstream's
// for every type of the built-in scheme, and fails when a type does not follow the
// rules any more.
//
// What it earns: a tenth of the time and of the allocated memory of decoding,
// converting and encoding (BenchmarkPod).
//
// # Parts of JSON
//
// Members, Elements, ScalarAt, Scanner and Extractor need valid JSON, which encoders write and both
// databases check. In invalid JSON they stop early, and never read outside the text. What they return
// shares the memory of the text.
//
// A Message is immutable and safe for concurrent use. The package keeps nothing but
// pooled buffers, starts no goroutine, and needs no shutdown.
package transcode
