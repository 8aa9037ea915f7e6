// Package managedfields computes the managed fields of what is created, once for all
// objects of one shape.
//
// What upstream does: its field manager converts the created object and an empty one to
// the request's version, compares them field by field by reflection, removes from the
// set of added fields those that nobody manages, and writes the set as JSON. For a Pod
// that is a sixth of the processor time of a create. The set does not depend on most
// of the object's values: the Pods that a ReplicaSet makes have the same one.
//
// What is done instead: the shape of an object is what the set can depend on. Objects
// of the same kind and shape have the same set, which is kept as JSON under the shape,
// itself and not a hash of it. Where a shape is not known, upstream's field manager
// computes the fields. A shape holds:
//
//   - for every struct, which fields are present, by upstream's own rules
//     (value.TypeReflectCacheEntry);
//   - for every scalar, whether it is zero: a field that is present and zero in the
//     empty object is no change;
//   - for every map, its keys; for every atomic list, whether it is null, empty or
//     neither; for every other list, its length and what identifies each item: its
//     value in a set, the values of its keys in a list that is a map;
//   - of values that marshal themselves (quantities, times), their type and whether
//     they are zero.
//
// What it relies on: the empty object converts to a zero value; the schema is of one form for
// each field, and no part of it is deduced from the value. Both are checked when a kind is
// first created, and a kind for which they do not hold is left to upstream.
//
// Besides, it relies on this: upstream's comparison with an empty object looks at nothing
// else (FuzzTrack compares the two for random objects of every built-in kind), and its
// field manager computes nothing where the live object has a UID and no managed fields.
//
// What it earns: the fields of a Pod take 15 µs instead of 197 (BenchmarkTrack), which is a
// sixth of the processor time of a create.
//
// The package also has the type converter of built-in kinds: NewTypeConverter.
package managedfields
