// Package managedfields computes the managed fields of created and updated objects.
// Those of created objects are computed once for all objects of one shape.
//
// What upstream does: its field manager converts the created object and an empty one to
// the request's version and compares them field by field by reflection. From the set of
// added fields it removes those that nobody manages, and writes the set as JSON. For a
// Pod that is a sixth of the processor time of a create. The set does not depend on
// most of the object's values: all Pods of a ReplicaSet have the same set.
//
// What is done instead: the shape of an object is the part of it that the set can
// depend on. Objects of the same kind and shape have the same set. A cache holds the
// set as JSON, with the whole shape as its key, not a hash of it. For a shape that is
// not in the cache, upstream's field manager computes the set. A shape holds:
//
//   - for every struct, which fields are present, by upstream's own rules
//     (value.TypeReflectCacheEntry);
//   - for every scalar, whether it is zero: a field that is present and zero in the
//     empty object is no change;
//   - for every map, its keys; for every atomic list, whether it is null, empty or
//     neither; for every other list, its length and what identifies each item: its
//     value in a set, the values of its keys in a list that is a map;
//   - for values that marshal themselves (quantities, times), their type and whether
//     they are zero.
//
// What it relies on: the empty object converts to a zero value; and the schema gives
// each field one form, without deducing a part of it from the value. Both are checked
// when a kind is created for the first time. For a kind that fails the check, upstream
// computes the managed fields.
//
// It also relies on two properties of upstream. Its comparison with an empty object
// depends on nothing but the shape; FuzzTrack compares the two for random objects of
// every built-in kind. Its field manager computes nothing if the live object has a UID
// and no managed fields.
//
// What it earns: the fields of a Pod take 15 µs instead of 197 (BenchmarkTrack), which
// is a sixth of the processor time of a create.
//
// The package also has the type converter of built-in kinds: NewTypeConverter.
package managedfields
