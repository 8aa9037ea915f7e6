package migrations

import (
	"errors"

	"github.com/golang-migrate/migrate/v4/database"
)

// versionTable notes the version, one row; there is none before the first
// step. Its name tells our databases from others.
const versionTable = "byre_schema"

const (
	createVersionTable = `CREATE TABLE IF NOT EXISTS ` + versionTable + ` (version bigint NOT NULL, dirty boolean NOT NULL)`
	dropVersionTable   = `DROP TABLE IF EXISTS ` + versionTable
	clearVersion       = `DELETE FROM ` + versionTable
	insertVersion      = `INSERT INTO ` + versionTable + ` (version, dirty) VALUES ($1, $2)`
	// SelectVersion reads the version of a migrated database; a table of that
	// name is missing from any other.
	SelectVersion = `SELECT version, dirty FROM ` + versionTable
)

var errUnused = errors.New("migrations: not a part of a migration")

// inTransaction is what both of our golang-migrate drivers share: the
// transaction around them is the lock, and they are not opened by URL.
type inTransaction struct{}

func (inTransaction) Open(string) (database.Driver, error) { return nil, errUnused }
func (inTransaction) Lock() error                          { return nil }
func (inTransaction) Unlock() error                        { return nil }
func (inTransaction) Drop() error                          { return errUnused }
