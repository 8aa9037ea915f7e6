// Package migrating tests that a migration may be killed anywhere.
package migrating
