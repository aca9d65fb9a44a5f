"""Function words that queries are searched without, in lower case.

Includes question words, because queries are usually questions. Short: on the collections measured, longer lists lost
more than they gained. In a language without a list every word counts, by how rare it is.
"""

STOPWORDS = {
    language: frozenset(words.split())
    for language, words in {
        "ar": """
            في من على إلى عن مع أن إن ما ماذا متى أين كيف كم هل هو هي هذا هذه التي الذي كان كانت تم أو لا
            التى الذين ذلك و
        """,
        "de": """
            der die das den dem des ein eine einen einem einer eines und oder in im an am auf aus bei für
            mit nach von vom vor zu zum zur über um ist sind war waren wird werden wurde wurden hat haben
            hatte sich es er sie ihr als auch nicht dass wie was wer wo wann warum wieviel welche welcher
            welches welchen welchem kann gibt man
        """,
        "en": """
            a about after all also am an and any are as at be because been before being between both but
            by can could did do does doing down during each few for from further had has have having he
            her here hers him his how i if in into is it its just me more most my no nor not of off on
            once only or other our out over own same she should so some such than that the their them then
            there these they this those through to too under until up very was we were what when where
            which while who whom why will with would you your s t don
        """,
        "es": """
            el la los las lo un una unos unas y o u de del a al en con por para es son fue fueron era ser
            se su sus que qué cómo como cuál cuáles quién quiénes cuándo dónde cuánto cuánta cuántos
            cuántas no más
        """,
        "fr": """
            le la les l un une des du de d et ou à au aux en dans sur par pour avec est sont était été
            être a ont se s sa son ses ce cette ces il elle ils elles on qui que quoi qu quel quelle quels
            quelles comment quand où pourquoi combien ne n pas plus
        """,
        "hi": """
            के में है का क्या की को ने से हैं था थे थी और पर एक यह वह कि हो
        """,
        "it": """
            il lo la i gli le l un uno una e o di del dello della dei degli delle d a al alla ai in nel
            nella con su per da dal è sono era essere ha che chi cosa come quando dove quale quali quanto
            quanti perché non si
        """,
        "nl": """
            de het een en of in op aan van voor met naar bij uit over is zijn was waren wordt werd heeft
            dat die dit deze er niet wat wie waar wanneer hoe hoeveel welke welk waarom te
        """,
        "pt": """
            o a os as um uma e ou de do da dos das em no na nos nas por para com é são foi era ser se que
            qual quais quem como quando onde quanto quantos não mais ao à
        """,
        "ru": """
            в во на и с со к о об от до из у за по для не что как какой какая какое какие каком каких
            какого кто когда где кого чем чего сколько почему это был была было были является или а но
        """,
        "sv": """
            en ett den det de och eller i på av för med till från är var som att inte om vad vem när var
            hur vilken vilket vilka varför
        """,
        "tr": """
            ve veya bir bu şu o ne nedir hangi hangisi kim kimdir kaç nasıl nerede zaman neden için ile de
            da mi mı mu mü
        """,
    }.items()
}
