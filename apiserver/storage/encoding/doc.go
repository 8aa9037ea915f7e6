// Package encoding is how the objects of a resource become bytes, and the reverse: the stored JSON,
// encrypted or not, and what clients get.
//
// A Serializer encodes the objects of one resource to store them, and decodes its records. A Format
// is one way to present them to clients: the stored JSON itself, JSON and protobuf of a version,
// metadata in protobuf, and rows of tables. What a Format makes of a record
// is kept in the cache of representations, for all readers.
package encoding
