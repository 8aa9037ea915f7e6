package migrations_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"byre/migrations"
)

// Up creates the database and migrates it to the program's schema; a second call changes
// nothing. Status returns the version.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "byre-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	endpoint := "sqlite://" + filepath.Join(dir, "byre.db")

	before, err := migrations.Status(ctx, endpoint)
	if err != nil {
		fmt.Println(err)
		return
	}
	after, err := migrations.Up(ctx, endpoint)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(before.Dialect, before.Current, after.Current == after.Latest)

	// The step down that deletes the tables runs only if the caller allows it to delete the
	// data.
	for version := after.Current; version > 1; version-- {
		if _, err := migrations.Down(ctx, endpoint, false); err != nil {
			fmt.Println(err)
			return
		}
	}
	_, err = migrations.Down(ctx, endpoint, false)
	fmt.Println(err)
	// Output:
	// sqlite 0 true
	// this deletes all data: 0 objects, and 0 changes of history
}
