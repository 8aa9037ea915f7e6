-- What servers note beside the objects, without a revision and without history, such as the leases of etcd's clients.
--
-- Programs that do not know the table leave it alone; that is why a migration down does too.
CREATE TABLE IF NOT EXISTS notes (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
