// Package storage takes the place of upstream's package of that name when
// `make apiextensions` runs the tests of k8s.io/apiextensions-apiserver/test/integration. It
// reads byre's SQLite file where upstream reads etcd.
package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// EtcdObjectReader reads the instances of a definition as they are stored.
type EtcdObjectReader struct {
	dir string // byre's data directory
	crd *apiextensionsv1.CustomResourceDefinition
}

// NewEtcdObjectReader returns a reader of the server whose data directory is the prefix of
// the storage.
func NewEtcdObjectReader(
	_ *clientv3.Client, restOptions *generic.RESTOptions, crd *apiextensionsv1.CustomResourceDefinition,
) *EtcdObjectReader {
	return &EtcdObjectReader{restOptions.StorageConfig.Prefix, crd}
}

// GetEtcdClients returns a client of which the tests use nothing but Close.
func GetEtcdClients(storagebackend.TransportConfig) (*clientv3.Client, clientv3.KV, error) {
	return clientv3.NewCtxClient(context.Background()), nil, nil
}

// WaitForStorageVersion calls updateObjFn until the object is stored in the version.
func (s *EtcdObjectReader) WaitForStorageVersion(
	version string, ns, name string, timeout time.Duration, updateObjFn func(),
) error {
	return wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, timeout, true,
		func(context.Context) (bool, error) {
			stored, err := s.GetStoredCustomResource(ns, name)
			if err != nil || stored.GroupVersionKind().Version == version {
				return err == nil, err
			}
			updateObjFn()
			return false, nil
		})
}

const storedValue = `SELECT value FROM objects WHERE "group" = ? AND resource = ? AND defined_by = 'custom' AND namespace = ? AND name = ?`

// GetStoredCustomResource reads an instance as it is stored.
func (s *EtcdObjectReader) GetStoredCustomResource(ns, name string) (*unstructured.Unstructured, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "byre.db")+"?mode=ro")
	if err != nil {
		return nil, err
	}
	var text []byte
	err = db.QueryRow(storedValue, s.crd.Spec.Group, s.crd.Spec.Names.Plural, ns, name).Scan(&text)
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", ns, name, err)
	}
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(text)
}

var errReadOnly = errors.New("nobody but byre writes to its database")

// SetStoredCustomResource fails: byre's caches would not know of the write.
func (s *EtcdObjectReader) SetStoredCustomResource(string, string, *unstructured.Unstructured) error {
	return errReadOnly
}

// SetStoredCustomResourceDefinition fails like SetStoredCustomResource.
func (s *EtcdObjectReader) SetStoredCustomResourceDefinition(string, *apiextensionsv1.CustomResourceDefinition) error {
	return errReadOnly
}
