package server

import "byre/sqlstore"

// KeyOf returns the key of etcd whose record has a key; false if that is no record of a key of etcd.
func KeyOf(record sqlstore.Key) (string, bool) {
	if !hasKeys(record.Of()) {
		return "", false
	}
	return string(keyOf(record)), true
}

// RecordOf returns the key of the record of a key of etcd. If that ends in the slash after one of Kubernetes' prefixes,
// or in a later one, the keys of etcd that begin with it have records of the same resource, whose names begin with the
// Name.
func RecordOf(key string) sqlstore.Key { return locate(key) }

// ValueOf returns the value of the key of etcd that a record is of.
func ValueOf(r *sqlstore.Record) ([]byte, error) { return decodeValue(r.Encoding, r.Value) }
