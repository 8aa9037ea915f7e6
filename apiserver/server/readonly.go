package server

import (
	"fmt"

	"byre/migrations"
)

// ReadsOnly reports whether the server writes nothing to the database.
func (o *StoreOptions) ReadsOnly() bool { return o.ReadOnlyCache != "" }

// StandbyDSN returns ReadOnlyCache with DatabaseSchema as its search_path.
func (o *StoreOptions) StandbyDSN() (string, error) {
	standby := StoreOptions{Endpoint: o.ReadOnlyCache, DatabaseSchema: o.DatabaseSchema}
	endpoint, err := standby.DSN()
	if err != nil {
		return "", fmt.Errorf("--read-only-cache: %w", err)
	}
	return endpoint, nil
}

// checkReadOnly returns an error for each flag that does not go with --read-only-cache.
func (o *Options) checkReadOnly() []error {
	if !o.Store.ReadsOnly() {
		return nil
	}
	isPostgres := func(endpoint string) bool {
		dialect, _, err := migrations.ParseEndpoint(endpoint)
		return err == nil && dialect == migrations.Postgres
	}
	var errs invalid
	standby, err := o.Store.StandbyDSN()
	errs.add(err)
	errs.unless(isPostgres(o.Store.Endpoint) && isPostgres(standby),
		"--read-only-cache needs PostgreSQL: name the primary with --endpoint, and a hot standby of it")
	errs.unless(len(o.Controllers) == 0 && !o.WithControllerManager && !o.WithScheduler,
		"with --read-only-cache no controllers run: leave out --controllers, --with-controller-manager and --with-scheduler")
	errs.unless(o.Backup.Schedule == "" && o.SQL.Schema == "" && !o.Store.Adopt,
		"with --read-only-cache the server writes nothing: leave out --backup-schedule, --sql-schema and --adopt")
	return errs
}
