package migrations

import (
	"errors"

	"github.com/golang-migrate/migrate/v4/database"
)

// versionTable has the version in one row. It exists once the first step was run. Its name
// distinguishes databases of byre from those of other programs.
const versionTable = "byre_schema"

const (
	createVersionTable = `CREATE TABLE IF NOT EXISTS ` + versionTable + ` (version bigint NOT NULL, dirty boolean NOT NULL)`
	dropVersionTable   = `DROP TABLE IF EXISTS ` + versionTable
	clearVersion       = `DELETE FROM ` + versionTable
	insertVersion      = `INSERT INTO ` + versionTable + ` (version, dirty) VALUES ($1, $2)`
	// SelectVersion selects the version of a database and whether it is dirty. Only a migrated
	// database has the table.
	SelectVersion = `SELECT version, dirty FROM ` + versionTable
)

var errUnused = errors.New("migrations: not a part of a migration")

// inTransaction has the methods of golang-migrate's database.Driver that both sessions share. Lock
// does nothing, because the transaction of a session holds the lock. golang-migrate does not call
// Open and Drop.
type inTransaction struct{}

func (inTransaction) Open(string) (database.Driver, error) { return nil, errUnused }
func (inTransaction) Lock() error                          { return nil }
func (inTransaction) Unlock() error                        { return nil }
func (inTransaction) Drop() error                          { return errUnused }
