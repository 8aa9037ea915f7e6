package changes

import (
	"context"
	"errors"
	"sync"

	"byre/sqlstore"
)

// Creations has the revisions that created namespaces and definitions. It is safe for concurrent
// use.
//
// Invariant: it is made after the changes were read for which it is asked, or after all earlier
// changes that create or delete a namespace or a definition (AreChanged). What it returns is
// then exact: a change is of the object that has the name now if it is not older than that object's
// creation.
type Creations struct {
	driver sqlstore.Driver
	mu     sync.Mutex
	known  map[sqlstore.Key]int64
}

// NewCreations makes a Creations.
func NewCreations(driver sqlstore.Driver) *Creations {
	return &Creations{driver: driver, known: make(map[sqlstore.Key]int64)}
}

// Of returns the revision that created an object; 0 if it does not exist.
func (c *Creations) Of(ctx context.Context, key sqlstore.Key) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if created, known := c.known[key]; known {
		return created, nil
	}
	created, err := CreatedNow(ctx, c.driver, key)
	if err == nil {
		c.known[key] = created
	}
	return created, err
}

// CreatedNow asks the database for the revision that created an object; 0 if it does not exist.
func CreatedNow(ctx context.Context, driver sqlstore.Driver, key sqlstore.Key) (int64, error) {
	record, _, err := driver.Get(ctx, key)
	if err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
		return 0, APIError(err)
	}
	return record.Created, nil
}

// NamespaceKey returns the key of a Namespace.
func NamespaceKey(name string) sqlstore.Key { return sqlstore.Key{Resource: "namespaces", Name: name} }

func definitionKey(group, resource string) sqlstore.Key {
	return sqlstore.Key{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: resource + "." + group}
}

// AreChanged reports whether a change creates or deletes a namespace or a definition.
func AreChanged(c *sqlstore.Change) bool {
	key := c.New.Key
	return c.Op != sqlstore.Update && (key == NamespaceKey(key.Name) || key.Of() == definitionKey("", "").Of())
}
