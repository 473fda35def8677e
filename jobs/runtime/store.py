"""The meeting of the ranks of a start: a store on a port of this start, and the proof that all know its token.

torch's store asks nobody who connects for a secret, and lists its keys to them. So the token itself never goes there:
keys lie below a digest of it, and after the process group is created every rank proves to every other one that it
read the file, which only the owner of the run can. A stranger in the place of a rank ends the start.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta
from pathlib import Path

from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # torch lists not all

from jobs.ranks import Rank
from jobs.rendezvous import RendezvousError, announce, await_file, listen
from jobs.runtime.data_pickles import exchange_data_only
from jobs.runtime.exchange import gather


def met_at(file: Path, rank: Rank, timeout: timedelta) -> Store:
    """Return the store of this start, which rank 0 holds and announces in the file; every rank calls it.

    Raise RendezvousError if rank 0 does not appear in time.
    """
    if rank.world_size == 1:
        exchange_data_only(secrets.token_bytes())
        return HashStore()
    if rank.is_first:
        listener = listen(rank.master_addr)
        port = listener.getsockname()[1]
        store = TCPStore(
            rank.master_addr,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
        )
        found = announce(file, rank.master_addr, port)
    else:
        found = await_file(file, timeout.total_seconds(), looking=rank.world_size)
        store = TCPStore(found.address, found.port, is_master=False, wait_for_workers=False, timeout=timeout)
    exchange_data_only(found.token.encode())
    return PrefixStore(hashlib.sha256(found.token.encode()).hexdigest(), store)


def refuse_strangers(file: Path, rank: Rank) -> None:
    """Raise RendezvousError if a rank of the process group has not read the file; every rank calls it.

    Afterwards the file is not needed.
    """
    if rank.world_size == 1:
        return
    token = await_file(file, 0).token.encode()
    # With a number of every rank in it, no proof of another start or rank can be repeated.
    fresh = " ".join(map(str, gather(secrets.token_hex(16))))

    def proof(number: int) -> str:
        return hmac.new(token, f"{number} {fresh}".encode(), hashlib.sha256).hexdigest()

    proofs = gather(proof(rank.rank))
    strangers = [number for number, given in enumerate(proofs) if not hmac.compare_digest(str(given), proof(number))]
    if strangers:
        raise RendezvousError(
            f"Who answers as rank {strangers[0]} is not of this run: it has not read {file}. Another user of the "
            "network took its place; start the run again, and inform the site."
        )
    if rank.is_first:
        file.unlink(missing_ok=True)
