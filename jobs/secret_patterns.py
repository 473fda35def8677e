r"""Patterns of passwords, tokens and keys in text; every search takes time in proportion to the length of the text.

Texts of others pass through these patterns, so no text may stop a command. Three rules keep the time linear:

* a repetition whose end may be missing is possessive (`*+`, `(?>...)`) or has a largest count;
* it begins at the start of a word or after a separator that it cannot contain, so no two searches read the same text;
* what a name means is decided once for each whole name, in `names_a_secret`, and not by backtracking.

secret_shapes.csv lists what tokens look like: a prefix, the characters after it, and the least number of these. The
prefixes and character sets are those of gitleaks' default rules (github.com/gitleaks/gitleaks, config/gitleaks.toml),
where it has none of trufflehog's or detect-secrets', and else of tokens as the issuers give them; the least numbers are
lower, so that the beginning of a token is found too.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# --- names -----------------------------------------------------------------------------------------------------

# HF_TOKEN and hf.token, but not tokenizer; API_KEY, but not sort_key; DB_PASS, but not forward_pass.
WORDS = (
    r"(?:(?i:token|secret|passwo?r[dt]|passw?o?r?d|passphrase|passcode|passkey|credentials?"
    r"|(?:api|access|auth|private|secret|account|signing|encryption|master|shared|license|wandb|hf|kaggle|openai|comet)[_-]?key"
    r"|(?:db|user|admin|root|mail|smtp|imap|proxy|ssh|sftp|sql|redis|ftp|ldap|bind|http|login|vnc|sudo|become)[_-]pass)"
    r"|_KEY|[A-Z0-9]_?PASS|[A-Z0-9]_PWD?|[A-Z0-9]_JWT)"
)
SECRET_WORD = re.compile(rf"{WORDS}(?![A-Za-z])")
# HF_TOKEN_PATH names a file.
PLACE = re.compile(r"(?i:path|file|dir|stdin)\b")
# Names that also mean other things: a forward pass, a pulse width, an authentication method.
SHORT_NAME = re.compile(r"(?i:(?:[\w-]*[_-])?pwd?|-{0,2}pass|pass|psk|_auth)")
NAME_CHARACTERS = re.compile(r"[\w.-]+")
# A whole name, if such a word may be in it. It begins where no other name ends.
NAMED = re.compile(rf"(?<![\w.-])(?=[\w.-]*?(?:{WORDS}|(?i:pw|pass|psk|_auth)))[\w.-]++")


@functools.lru_cache(maxsize=4096)
def names_a_secret(name: str) -> bool:
    """Return True if a variable, key or option of this name contains a secret."""
    last = name.rpartition(".")[2]
    if NAME_CHARACTERS.fullmatch(name) is None:
        return False
    places = [place.start() for place in PLACE.finditer(last)]
    return any(word.end() > max(places, default=-1) for word in SECRET_WORD.finditer(last))


# --- name and value --------------------------------------------------------------------------------------------

QUOTE = r"""\\*+["']"""
# Full-width signs are those of input methods of East Asia.
SEPARATOR = re.compile(
    rf"""(?:(?:{QUOTE})?+\s*+(?:\+?[=\uff1d\ufe66]{{1,3}}>?|:=|(?P<colon>[:\uff1a]))\s*+(?:[bfr](?={QUOTE}))?+
    | {QUOTE},\s*+b?+(?={QUOTE}))""",
    re.VERBOSE,
)
# Shells continue a quoted value after '"'"' and '\''. A value without its closing quote ends with the line.
QUOTED = (
    r"""(?:"(?![$`"])(?:[^"\\]++|\\.)*+"|\\++"(?![$`"])[^"]*+"|\$?\\*+'(?!')[^']*+'(?:"'"'[^']*+'|\\''[^']*+')*+"""
    r"""|\\*+["'](?![$`"'])[^"'\n]++)"""
)
# A comma ends a value of YAML, and not a word of a shell. Shell expansions ($TOKEN, $(cat file)) are kept.
PLAIN = r"""(?![$`"'\\]|\[redacted)(?:[^\s"',;}\]\)\\]|%s)++(?:["'][^\s"',:]++["'])*+"""
VALUE_AFTER_COLON = re.compile(rf"{QUOTED}|{PLAIN % '(?!)'}")
VALUE = re.compile(QUOTED + "|" + PLAIN % r""",(?=[^\s"'}\]\)])""")
BLANKS = re.compile(r"[ ]++")
TAG_END = re.compile(r">")
# Commands that set a variable by its name: `setenv HF_TOKEN value`.
SETTING = re.compile(r"\b(?:setenv|set[ ]{1,4}-\w{0,8}|aws[ ]{1,4}configure[ ]{1,4}set)[ ]{1,4}$")
LONGEST_SETTING = 40
SWITCHES = {"0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"}
NUMBER = re.compile(r"[\d.,:%+-]*")
# Latencies of a server and numbers of experts: time_to_first_token:3000, inter_token_latency:20, experts_per_token=8.
MEASURED = re.compile(r"(?i:time_(?:to|per)_\w{1,20}_token|inter_token_latency|(?:model\.)?experts_per_token)")


def is_a_place(value: str, name: str) -> bool:
    """Return True if the value of a CREDENTIALS, PWD or SSH_KEY begins as a path does."""
    begins = value[:8].lstrip("\"'").startswith(("/", "~"))
    return begins and any(word in name.upper() for word in ("CREDENTIAL", "PWD", "SSH_KEY"))


def is_harmless(value: str, name: str) -> bool:
    """Return True for a switch, such as 1 or false, for MEASURED numbers, and for a path in a variable of a file."""
    bare = value.strip("\"'")
    is_number = MEASURED.fullmatch(name) is not None and NUMBER.fullmatch(bare) is not None
    return is_number or is_a_place(value, name) or bare.lower() in SWITCHES


def assigned(text: str) -> Iterator[tuple[int, int]]:
    """Yield where values of secrets begin and end: NAME=value, "name": "value", --name value, <name>value<."""
    at = 0
    lowered = text.lower()
    if not any(word in lowered for word in NAME_WORDS):
        return
    while name := NAMED.search(text, at):
        at = name.end()
        certain = names_a_secret(name[0])
        if not certain and SHORT_NAME.fullmatch(name[0]) is None:
            continue
        separator = separator_after(text, name, certain=certain)
        # Before the whole value is read, which may contain many such names.
        if separator is None or is_a_place(text[separator.end() : separator.end() + 8], name[0]):
            continue
        after_colon = separator.re is SEPARATOR and separator["colon"]
        value = (VALUE_AFTER_COLON if after_colon else VALUE).match(text, separator.end())
        if value is None or is_harmless(value[0], name[0]):
            continue
        if certain or not (NUMBER.fullmatch(value[0]) or len(value[0]) < 4):
            yield value.span()
            at = value.end()


def separator_after(text: str, name: re.Match[str], *, certain: bool) -> re.Match[str] | None:
    """Return what stands between a name and its value; None if it is not an assignment."""
    found = SEPARATOR.match(text, name.end())
    before = text[max(0, name.start() - LONGEST_SETTING) : name.start()]
    if found is None:
        takes_blanks = name[0].startswith("--") or (certain and SETTING.search(before))
        if takes_blanks or name[0] == "-pass":
            return BLANKS.match(text, name.end())
        return TAG_END.match(text, name.end()) if before.endswith("<") else None
    if not certain and found["colon"]:
        # `forward pass: done` is a sentence, `{pass: hunter2}` is data.
        stands_alone = not before.strip(" \t") or before.rstrip(" \t")[-1] in "\n{,\"'("
        return found if stands_alone and not name[0].isupper() else None
    return found


# --- commands --------------------------------------------------------------------------------------------------

# Limited, or the time of the search would grow with the square of the text.
BETWEEN = r"[^\n;|&]{0,300}?"
WORD = r"""(?:"(?![$`])[^"\n]{1,500}"|'[^'\n]{1,500}'|(?![$`"'\\-]|\[redacted)[^\s"',;}\]\)\\|]{1,2000}+)"""
READERS = r"(?:kinit|sudo|su|chpasswd|passwd|docker|podman|helm|cryptsetup|gpg2?|wandb|gh|glab|hf|openssl|ssh-add)"
# What stands before a password in `net use` of Windows: a drive, a share, an option.
NET_USE = (
    r"""(?:[a-z]:|\*|\\{2,8}+\S{1,300}+|"\\{2,8}+[^"\n]{1,300}+"|/[a-z]{1,20}+(?::(?:"[^"\n]{1,200}+"|\S{1,200}+))?+)"""
)
# What stands before the credentials of the header Authorization.
SCHEMES = r"(?:bearer|basic|token|api-?key|digest|negotiate|bot|key|oauth|jwt|pat|splunk|ssws|genie-?key|sso-key|hawk)"
# Commands, headers and URLs that contain a password or key without naming it.
COMMAND = re.compile(
    rf"""(?P<before>
      (?i:\bauthorization(?:\\*+["'])?+[:=,][ ]*+(?:\\*+["'])?+)(?i:{SCHEMES}[ ]++)?+
    | [?&;](?i:sig|signature|x-amz-signature|x-goog-signature|key|code|auth|apikey|pass|pw)=
    | \bmachine\s++\S++\s++login\s++\S++\s++password\s++
    | \bwandb\s++login\s++(?>(?:--?+(?!key[ =])[\w-]++(?:=\S++|[ ]https?://\S++)?+\s++)*+)
      (?:--key[ =]|(?=["']?[\w-]{{0,100}}\d))
    | \b(?:docker|podman|apptainer|singularity|helm|az|oc)\b(?>{BETWEEN}\slogin\b){BETWEEN}\s-p[ ]*+
    | \bsshpass\s++-p[ ]*+
    | (?<![\w-])(?:mysql|mariadb)[\w-]*+{BETWEEN}[\s"']-p(?=\S)
    | \bldap(?:search|add|modify|delete|whoami|passwd|compare|exop|modrdn)\b{BETWEEN}\s-w[ ]*+
    | \b(?:redis-cli|mongo(?:sh|dump|restore)?)\b{BETWEEN}\s(?:-a|-p)[ ]++
    | \b(?:sqlcmd|ipmitool|zip|unzip)\b{BETWEEN}\s-P[ ]*+
    | \b7z[a-z]?\b{BETWEEN}\s-p(?=\S)
    | \bssh-keygen\b{BETWEEN}\s-N[ ]*+
    | \bopenssl\b{BETWEEN}\s(?:-passin|-passout|-pass|-k|-K)[ ]++(?:pass:)?+
    | \bhtpasswd\b[ ](?:-\w++[ ]++){{0,8}}(?:\S{{1,300}}+[ ]++){{1,2}}(?=\S++\s*+(?:$|[;&|\n]))
    | \b(?:kinit|sudo|su|chpasswd|passwd)\b[^\n;|&<]{{0,200}}<<<[ ]*+
    | \bsmbclient\b{BETWEEN}\s(?:-U|--user)[ =]*+["']?[^\s:"'$%]{{1,200}}+%
    | \blftp\b{BETWEEN}\s-u[ ]*+["']?[^\s:"'$,]{{1,200}}+,
    | \bcurl\b{BETWEEN}\s(?:-u|--user|-U|--proxy-user)[ =]*+["']?[^\s:"'$]{{1,200}}+:
    | (?i:\bidentified[ ]++by[ ]++)
    | (?i:\bnet(?:\.exe)?[ ]use[ ]++(?:{NET_USE}[ ]++){{1,8}}+)(?![/*])
    | (?i:\bnet(?:\.exe)?[ ]user[ ]++\S{{1,100}}+[ ]++)(?=[^\s/*]\S{{0,200}}+[ ][^\n]{{0,100}}?/[A-Za-z])
    | (?i:\bconvertto-securestring[ ]++(?:-string[ ]++)?+|\bpscredential\(["'][^"'\n]{{1,100}}+["'],[ ]*+)(?=["'])
    | (?i:\b(?:psexec(?:64)?(?:\.exe)?|winrs|bcp|osql)\b){BETWEEN}\s-[pP][ :]*+
    | \b(?:plink|pscp|psftp|putty)\b{BETWEEN}\s-pw[ ]++
    | (?i:\b(?:cmdkey|schtasks|[xw]freerdp)\b){BETWEEN}\s/(?i:pass:|rp[ ]++|p:)
    | \b(?:nmcli|rclone)\b{BETWEEN}\spass(?:word)?[ ]++
    | \bmc[ ]alias[ ]set[ ]++(?:\S{{1,300}}+[ ]++){{3}}
    | (?i:(?<![a-z])auth\\*+["']\s*+:\s*+)(?=\\*+["'][A-Za-z0-9+/]{{8}})
    | (?<![\w.-])(?i:key)(?:\\*+["'])?+\s*+[:=]\s*+(?=(?:\\*+["'])?+[A-Fa-f0-9]{{32,64}}+\b)
    )(?P<value>{WORD}|\\++"[^"\n]{{1,500}}")
    | (?P<header>(?i:\bcookie:[ ]*+))(?!\[redacted)[^\s"'][^\r\n"']*+
    | (?P<proxy>(?:(?i:proxy)(?:\\*+["'])?+\s?[=:,\s]\s?|\bcurl\b{BETWEEN}\s-x[ ]?)(?:\\*+["'])?+)
      [^\s:/@"']{{1,200}}+:(?!\[redacted)[^\s@"']{{1,200}}+(?=@)
    | (?P<piped>\b(?:echo|printf)[ ]++(?:-\w++[ ]++)?+)(?!\[redacted)(?=[^\n|]{{1,200}}\|\s*+{READERS}\b)[^\n|]++
    """,
    re.VERBOSE,
)
# Text without any of these words is not searched: that takes most of the time of ordinary text.
COMMAND_WORDS = (
    "authorization", "cookie", "proxy", "identified", "auth", "key", "?", "&", "machine", "login", "sshpass", "mysql",
    "mariadb", "ldap", "redis", "mongo", "sqlcmd", "ipmitool", "zip", "7z", "openssl", "htpasswd", "<<<", "smbclient",
    "lftp", "curl", "echo", "printf", "net use", "net.exe use", "securestring", "pscredential", "psexec", "winrs",
    "bcp", "osql", "plink", "pscp", "psftp", "putty", "cmdkey", "schtasks", "freerdp", "nmcli", "rclone", "mc alias",
)  # fmt: skip
NAME_WORDS = ("token", "secret", "pass", "pw", "key", "credential", "psk", "_auth", "jwt")
PREFIXES = ("before", "header", "proxy", "piped")


def without_commands(text: str, shown: str) -> str:
    """Return the text with `shown` in place of what COMMAND finds."""
    lowered = text.lower()
    if not any(word in lowered for word in COMMAND_WORDS):
        return text
    return COMMAND.sub(lambda found: next(filter(None, found.group(*PREFIXES))) + shown, text)


# --- shapes ----------------------------------------------------------------------------------------------------

KEY_BLOCK = r"-{4,5}[ ]?BEGIN[ ][A-Z0-9 ]{0,60}PRIVATE[ ]KEY(?:[ ]BLOCK)?[ ]?-{4,5}"


@functools.cache
def shapes() -> re.Pattern[str]:
    """Return the pattern of all tokens in secret_shapes.csv, and of keys and passwords that are not tokens."""
    prefixes: dict[tuple[str, str], list[str]] = defaultdict(list)
    with Path(__file__).with_name("secret_shapes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            prefixes[row["characters"], row["least"]].append(row["prefix"])
    tokens = "|".join(f"(?:{'|'.join(p)})[{characters}]{{{least},}}+" for (characters, least), p in prefixes.items())
    return re.compile(
        # First a token, or user:password, in a URL, in which a path has one slash: https:/user:password@host
        rf"""(?<=://)(?=[^\s/:@]{{0,300}}\d)[^\s/:@]{{20,}}+(?=@)
        | (?:(?<=://)|(?<=[A-Za-z]:/)(?!/)|(?<=[\s"'=]//))[^\s/:@]{{0,300}}+:[^\s/]{{1,2000}}(?=@(?!sha256:))
        # A password with a slash. A number before the slash is a port.
        | (?<=://)[^\s/:@]{{1,200}}+:(?!\d+/)[^\s@"'<>,;()\[\]{{}}|]{{1,200}}+(?=@(?!sha256:))
        | (?<![A-Za-z0-9])(?:{tokens})
        | (?i:\bbearer[ ]++)[\w.~+/-]{{12,}}+=*+
        | (?i:\bauthorization:[ ]*+basic[ ]++)[A-Za-z0-9+/]{{8,}}+=*+
        # A block of keys, also one without its end; it is searched up to the next beginning only.
        | {KEY_BLOCK}
          (?:(?>(?:(?!-----?[ ]?(?:BEGIN|END)[ ])[\s\S]){{0,16000}}+)----[^\n]{{0,100}}?-----?|[A-Za-z0-9+/=\s\\]*+)
        # The same of PuTTY.
        | (?<=Private-Lines:[ ])\d++[A-Za-z0-9+/=\s\\]*+
        # Hashes of passwords, as in shadow and of htpasswd.
        | \$(?:apr1|[156]|2[abxy]?|y|gy|7|argon2\w{{1,3}}|scrypt|pbkdf2[\w-]{{0,20}})\$[\w./$=,+-]{{20,}}+
        | \{{S?SHA\d{{0,3}}\}}[A-Za-z0-9+/]{{20,}}+=*+
        """,
        re.VERBOSE,
    )
