// Package transcode converts the JSON of a typed API object to the bytes that the
// object's generated Marshal method returns, without making the object.
//
// What upstream does: it decodes the stored bytes into an object, converts the object
// to the requested version and calls the object's Marshal method.
//
// What is done instead: where the stored JSON is already in the requested version, each
// member is copied to the protobuf field that the tags of the Go type name.
//
// What it relies on: encoding/json has written the stored JSON from the same Go type,
// and generated Marshal methods follow the rules in fields.go.
// TestTranscode_EqualsUpstreamForEveryBuiltInType compares the bytes with upstream's
// for every type of the built-in scheme, and fails when a type does not follow the
// rules any more.
//
// What it earns: a tenth of the time and of the allocated memory of decoding,
// converting and encoding (BenchmarkPod).
//
// A Message is immutable and safe for concurrent use. The package keeps nothing but
// pooled buffers.
package transcode
